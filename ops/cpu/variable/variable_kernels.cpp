#include "ops/cpu/variable/variable_kernels.h"

// For GFNI (bit_planes-inl.h).
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/variable/variable_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "ops/cpu/variable/block_extents-inl.h"
#include "ops/cpu/variable/variable_grains-inl.h"
#include "ops/cpu/variable/variable_headers-inl.h"

#if NARROWCAST_HAS_GFNI && (HWY_TARGETS & HWY_AVX3)
namespace narrowcast::cpu::N_AVX3 {
const VariableKernels* variable_kernels();
}
#endif

NARROWCAST_BEFORE_PLANES;
namespace narrowcast::cpu::HWY_NAMESPACE {

// A grain as float32, and the grain to prefetch meanwhile.
template <class T>
HWY_INLINE TileSource grain_of(const WireInput<T>& input, int64_t begin, int64_t n, float* tile) {
  const T* const upcoming = upcoming_of(input, begin);
  TileSource source = source_of(input.grain(begin), n, tile);
  if constexpr (std::is_same_v<T, float>) {
    source.upcoming = upcoming;
  } else if (upcoming != nullptr) {
    prefetch(upcoming, 0, n * static_cast<int64_t>(sizeof(T)));
  }
  return source;
}

template <class T>
void extents(WireInput<T> input, BlockExtent* extents) {
  alignas(64) float tile[kTile];
  for_each_grain(input.n, [&](int64_t begin, int64_t n) {
    extents_of_tile(grain_of(input, begin, n, tile), n, extents + begin / kVariableBlock);
  });
}

void headers(const BlockExtent* extents, int64_t blocks, const StepCodes& codes, uint8_t* headers) {
  for (int64_t i = 0; i < blocks; i += kGrainBlocks) {
    uint8_t of_grain[kGrainBlocks];
    headers_of_grain(extents + i, codes, of_grain);
    std::memcpy(headers + i, of_grain, static_cast<size_t>(std::min(kGrainBlocks, blocks - i)));
  }
}

void offsets(const uint8_t* headers, int64_t blocks, int64_t* byte_of_grain) {
  int64_t byte = 0;
  for (int64_t i = 0; i < blocks; i += kGrainBlocks) {
    *byte_of_grain++ = byte;
    byte += blocks - i >= kGrainBlocks ? bytes_of_grain(headers + i)
                                       : codec::wire::bytes_of_headers(headers + i, blocks - i);
  }
  *byte_of_grain = byte;
}

template <class T>
void codes(WireInput<T> input, const Rounding& rounding, const VariableGrains& grains) {
  alignas(64) float tile[kTile];
  for_each_grain(input.n, [&](int64_t begin, int64_t n) {
    const int64_t grain = begin / kTile;
    const VariableGrain one{grains.headers + grain * kGrainBlocks, grains.codes + grains.bytes[grain],
                            grains.codes + grains.bytes[grain + 1]};
    encode_grain(grain_of(input, begin, n, tile), n, grains.step, rounding.at(begin), one);
  });
}

// Decodes the grain of a message that begins at element `first`.
template <class Sink>
HWY_INLINE void decode_one(const VariableSource& source, int64_t first, int64_t n, float* out) {
  const int64_t grain = first / kTile;
  decode_grain<Sink>(source.message, grain * kGrainBlocks, source.byte_of_grain[grain], n, out);
}

template <class Sink>
HWY_INLINE void decode_to(const VariableSource& source, int64_t first, const WireOutput& out) {
  for_each_grain(out.n,
                 [&](int64_t begin, int64_t n) { decode_one<Sink>(source, first + begin, n, out.grain(begin)); });
}

void decode(const VariableSource& source, int64_t first, WireOutput out) {
  if (is_streamed(out.x, array_length(out))) {
    decode_to<Stream>(source, first, out);
    hwy::FlushStream();
  } else {
    decode_to<Assign>(source, first, out);
  }
}

template <class Sink>
HWY_INLINE void take_part(const VariableParts& parts, int64_t r, int64_t begin, int64_t n, float* out) {
  if (parts.messages[r] == nullptr) {
    if (const float* const upcoming = upcoming_of(parts.own, begin); upcoming != nullptr) {
      prefetch(upcoming, 0, kTileBytes);
    }
    put_all<Sink>(parts.own.grain(begin), n, out);
  } else {
    decode_one<Sink>(*parts.messages[r], parts.first + begin, n, out);
  }
}

void average(const VariableParts& parts, WireOutput mean, BlockExtent* extents) {
  const bool streams =
      extents == nullptr && is_streamed(mean.x, array_length(mean));  // A mean that is measured is soon read again.
  const Quotient quotient(parts.divisor());
  alignas(64) float tile[kTile] = {};
  for_each_grain(mean.n, [&](int64_t begin, int64_t n) {
    take_part<Assign>(parts, 0, begin, n, tile);
    for (int64_t r = 1; r < parts.ranks; ++r) {
      take_part<Accumulate>(parts, r, begin, n, tile);
    }
    float* const out = mean.grain(begin);
    streams ? put_quotients<Stream>(tile, n, quotient, out) : put_quotients<Assign>(tile, n, quotient, out);
    if (extents != nullptr) {
      extents_of_tile({out, nullptr}, n, extents + begin / kVariableBlock);
    }
  });
  hwy::FlushStream();
}

const VariableKernels* variable_kernels() {
  static constexpr VariableKernels kKernels{
      {&extents<float>, &extents<double>, &extents<c10::BFloat16>, &extents<c10::Half>},
      {&codes<float>, &codes<double>, &codes<c10::BFloat16>, &codes<c10::Half>},
      &largest_of_extents,
      &bytes_of_widths,
      &headers,
      &offsets,
      &decode,
      &average};
#if NARROWCAST_HAS_GFNI && (HWY_TARGETS & HWY_AVX3)
  if (!__builtin_cpu_supports("gfni")) return N_AVX3::variable_kernels();
#endif
  return &kKernels;
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(variable_kernels);

const VariableKernels& kernels() { return *HWY_DYNAMIC_DISPATCH(variable_kernels)(); }

}  // namespace

template <class T>
void variable_extents(WireInput<T> input, BlockExtent* extents) {
  std::get<VariableExtents<T>>(kernels().extents)(input, extents);
}

uint32_t variable_largest(const BlockExtent* extents, int64_t blocks) { return kernels().largest(extents, blocks); }

int64_t variable_bytes(const BlockExtent* extents, int64_t blocks, int64_t stride,
                       const codec::wire::StepCodes& codes) {
  return kernels().bytes(extents, blocks, stride, codes);
}

void variable_headers(const BlockExtent* extents, int64_t blocks, const codec::wire::StepCodes& codes,
                      uint8_t* headers) {
  kernels().headers(extents, blocks, codes, headers);
}

void variable_offsets(const uint8_t* headers, int64_t blocks, int64_t* byte_of_grain) {
  kernels().offsets(headers, blocks, byte_of_grain);
}

template <class T>
void variable_codes(WireInput<T> input, const Rounding& rounding, const VariableGrains& grains) {
  std::get<VariableCodes<T>>(kernels().codes)(input, rounding, grains);
}

void variable_decode(const VariableSource& source, int64_t first, WireOutput out) {
  kernels().decode(source, first, out);
}

void variable_average(const VariableParts& parts, WireOutput mean, BlockExtent* extents) {
  kernels().average(parts, mean, extents);
}

#define NARROWCAST_INSTANTIATE(T)                                \
  template void variable_extents<T>(WireInput<T>, BlockExtent*); \
  template void variable_codes<T>(WireInput<T>, const Rounding&, const VariableGrains&);

NARROWCAST_INSTANTIATE(float)
NARROWCAST_INSTANTIATE(double)
NARROWCAST_INSTANTIATE(c10::BFloat16)
NARROWCAST_INSTANTIATE(c10::Half)

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE
