#include "ops/cpu/wire/variable_kernels.h"

// For GFNI (bit_planes-inl.h).
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/wire/variable_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "ops/cpu/wire/variable_grains-inl.h"

#if NARROWCAST_HAS_GFNI && (HWY_TARGETS & HWY_AVX3)
namespace narrowcast::cpu::N_AVX3 {
const VariableKernels* variable_kernels();
}
#endif

NARROWCAST_BEFORE_PLANES;
namespace narrowcast::cpu::HWY_NAMESPACE {

// Calls body(first element, elements) for each grain of an array of n.
template <class Body>
HWY_INLINE void for_each_grain(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += kTile) {
    body(i, std::min(kTile, n - i));
  }
}

template <class T>
void largest(WireInput<T> input, uint32_t* largest) {
  alignas(64) float tile[kTile];
  for_each_grain(input.n, [&](int64_t begin, int64_t n) {
    largest_of_grain(source_of(input.x + begin, n, tile).x, n, largest + begin / kVariableBlock);
  });
}

void headers(const uint32_t* largest, int64_t blocks, const StepCodes& codes, uint8_t* headers) {
  for (int64_t i = 0; i < blocks; i += kGrainBlocks) {
    uint8_t of_grain[kGrainBlocks];
    headers_of_grain(largest + i, codes, of_grain);
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
    encode_grain(source_of(input.x + begin, n, tile).x, n, grains.step, rounding.at(begin), one);
  });
}

template <class Sink>
HWY_INLINE void decode_to(const VariableSource& source, int64_t first, int64_t n, float* out) {
  for_each_grain(n, [&](int64_t begin, int64_t part) {
    const int64_t grain = (first + begin) / kTile;
    decode_grain<Sink>(source.message, grain * kGrainBlocks, source.byte_of_grain[grain], part, out + begin);
  });
}

void decode(const VariableSource& source, int64_t first, int64_t n, float* out) {
  if (is_streamed(out, n)) {
    decode_to<Stream>(source, first, n, out);
    hwy::FlushStream();
  } else {
    decode_to<Assign>(source, first, n, out);
  }
}

template <class Sink>
HWY_INLINE void take_part(const VariableParts& parts, int64_t r, int64_t begin, int64_t n, float* out) {
  if (parts.messages[r] == nullptr) {
    put_all<Sink>(parts.own + begin, n, out);
  } else {
    decode_to<Sink>(*parts.messages[r], parts.first + begin, n, out);
  }
}

void average(const VariableParts& parts, float* mean) {
  const bool is_long = is_streamed(mean, parts.n);
  const Quotient quotient(parts.ranks);
  alignas(64) float tile[kTile] = {};
  for_each_grain(parts.n, [&](int64_t begin, int64_t n) {
    take_part<Assign>(parts, 0, begin, n, tile);
    for (int64_t r = 1; r < parts.ranks; ++r) {
      take_part<Accumulate>(parts, r, begin, n, tile);
    }
    is_long ? put_quotients<Stream>(tile, n, quotient, mean + begin)
            : put_quotients<Assign>(tile, n, quotient, mean + begin);
  });
  hwy::FlushStream();
}

const VariableKernels* variable_kernels() {
  static constexpr VariableKernels kKernels{
      {&largest<float>, &largest<double>, &largest<c10::BFloat16>, &largest<c10::Half>},
      {&codes<float>, &codes<double>, &codes<c10::BFloat16>, &codes<c10::Half>},
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
void variable_largest(WireInput<T> input, uint32_t* largest) {
  std::get<VariableLargest<T>>(kernels().largest)(input, largest);
}

int64_t variable_bytes(const uint32_t* largest, int64_t blocks, const codec::wire::StepCodes& codes) {
  return kernels().bytes(largest, blocks, codes);
}

void variable_headers(const uint32_t* largest, int64_t blocks, const codec::wire::StepCodes& codes, uint8_t* headers) {
  kernels().headers(largest, blocks, codes, headers);
}

void variable_offsets(const uint8_t* headers, int64_t blocks, int64_t* byte_of_grain) {
  kernels().offsets(headers, blocks, byte_of_grain);
}

template <class T>
void variable_codes(WireInput<T> input, const Rounding& rounding, const VariableGrains& grains) {
  std::get<VariableCodes<T>>(kernels().codes)(input, rounding, grains);
}

void variable_decode(const VariableSource& source, int64_t first, int64_t n, float* out) {
  kernels().decode(source, first, n, out);
}

void variable_average(const VariableParts& parts, float* mean) { kernels().average(parts, mean); }

#define NARROWCAST_INSTANTIATE(T)                             \
  template void variable_largest<T>(WireInput<T>, uint32_t*); \
  template void variable_codes<T>(WireInput<T>, const Rounding&, const VariableGrains&);

NARROWCAST_INSTANTIATE(float)
NARROWCAST_INSTANTIATE(double)
NARROWCAST_INSTANTIATE(c10::BFloat16)
NARROWCAST_INSTANTIATE(c10::Half)

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE
