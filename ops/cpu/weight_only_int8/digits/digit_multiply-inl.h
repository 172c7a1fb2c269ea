// Digits times codes, as digit_kernels.h says, for the instruction set being
// compiled. Included by digit_kernels.cpp, which includes Highway.
#if defined(NARROWCAST_DIGIT_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_DIGIT_MULTIPLY_INL_H_
#undef NARROWCAST_DIGIT_MULTIPLY_INL_H_
#else
#define NARROWCAST_DIGIT_MULTIPLY_INL_H_
#endif

#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/weight_only_int8/digits/digit_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

constexpr int kTileOutputs = 4;
constexpr int kTilesPerBlock = kBlockOutputs / kTileOutputs;
constexpr int64_t kSlice = 2048;  // inputs whose packed codes, with a panel's digits, stay in the first-level cache

// A slice of inputs: k = begin..begin + size, a whole number of steps.
struct Slice {
  int64_t begin;
  int64_t size;
};

// The codes of one output, with 128 added, zeros past the inputs' end, every 256 bytes of `packed`.
inline void pack_output(const int8_t* codes, int64_t inputs, Slice slice, int8_t* packed) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int64_t k = 0; k < slice.size; k += kDigitStep) {
    const int64_t left = std::clamp<int64_t>(inputs - slice.begin - k, 0, 64);
    const auto mask = left == 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    const int8_t* const source = codes + slice.begin + k;
    _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(source) + kSlice), _MM_HINT_T1);
    const __m512i loaded = _mm512_maskz_loadu_epi8(mask, source);
    _mm512_store_si512(packed + k * kTileOutputs, _mm512_xor_si512(loaded, offset));
  }
}

// The slice of a block's codes: for each tile of four outputs, 64 codes of each output in turn. Outputs past the
// layer's end are copies of its last one.
inline void pack_block(const Int8Layer& layer, int64_t block, Slice slice, int8_t* packed) {
  for (int64_t o = 0; o < kBlockOutputs; ++o) {
    const int64_t output = std::min(block * kBlockOutputs + o, layer.outputs - 1);
    int8_t* const tile = packed + o / kTileOutputs * kTileOutputs * slice.size;
    pack_output(layer.codes + output * layer.inputs, layer.inputs, slice, tile + o % kTileOutputs * kDigitStep);
  }
}

// In assembly: with its intrinsic GCC 12 moves most of the 24 sums to memory and back, 2.5 times slower.
HWY_INLINE void add_products(__m512i& sums, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
}

// The sum of each vector's lanes.
HWY_INLINE __m128i sums_of_lanes(const __m512i (&v)[kTileOutputs]) {
  const __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  const __m512i quarters = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  const __m256i halves = _mm256_add_epi32(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64(quarters, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

// sums[d][o] += digit row d of a panel of kDigitRows times output o of a tile, over `size` inputs.
template <int kDigitRows>
void multiply_tile(const int8_t* digits, const int8_t* packed, int64_t size, int32_t* sums) {
  __m512i partial[kDigitRows][kTileOutputs];
  HWY_UNROLL(24)
  for (int i = 0; i < kDigitRows * kTileOutputs; ++i) {
    partial[i / kTileOutputs][i % kTileOutputs] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < size; k += kDigitStep) {
    __m512i codes[kTileOutputs];
    HWY_UNROLL(4)
    for (int o = 0; o < kTileOutputs; ++o) {
      codes[o] = _mm512_load_si512(packed + k * kTileOutputs + o * kDigitStep);
    }
    HWY_UNROLL(6)
    for (int d = 0; d < kDigitRows; ++d) {
      const __m512i digit = _mm512_load_si512(digits + k * kDigitRows + d * kDigitStep);
      HWY_UNROLL(4)
      for (int o = 0; o < kTileOutputs; ++o) add_products(partial[d][o], codes[o], digit);
    }
  }
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) {
    auto* const out = reinterpret_cast<__m128i*>(sums + d * kTileOutputs);
    _mm_store_si128(out, _mm_add_epi32(_mm_load_si128(out), sums_of_lanes(partial[d])));
  }
}

using MultiplyTile = void (*)(const int8_t*, const int8_t*, int64_t, int32_t*);
constexpr MultiplyTile kMultiplyTile[kPanelDigitRows + 1] = {nullptr,           &multiply_tile<1>, &multiply_tile<2>,
                                                             &multiply_tile<3>, &multiply_tile<4>, &multiply_tile<5>,
                                                             &multiply_tile<6>};

// Sums of one block: for each panel, for each tile, [digit row][output].
constexpr int64_t kTileSums = kPanelDigitRows * kTileOutputs;
constexpr int64_t kPanelSums = kTilesPerBlock * kTileSums;

inline void multiply_slice(const DigitRows& x, const int8_t* packed, Slice slice, int32_t* sums) {
  for (int64_t first = 0; first < x.rows * x.planes; first += kPanelDigitRows) {
    const int64_t digit_rows = std::min(kPanelDigitRows, x.rows * x.planes - first);
    const int8_t* const digits = x.digits + first * x.padded + slice.begin * digit_rows;
    for (int64_t tile = 0; tile < kTilesPerBlock; ++tile) {
      kMultiplyTile[digit_rows](digits, packed + tile * kTileOutputs * slice.size, slice.size,
                                sums + first / kPanelDigitRows * kPanelSums + tile * kTileSums);
    }
  }
}

// Four outputs of a row from the sums of its planes, in double, where all before the unit is exact.
inline __m256d combine_planes(const int32_t* sums, const int32_t* corrections, int64_t planes) {
  __m256d value = _mm256_setzero_pd();
  for (int64_t plane = 0; plane < planes; ++plane) {
    const __m128i products = _mm_load_si128(reinterpret_cast<const __m128i*>(sums + plane * kTileOutputs));
    const __m128i corrected = _mm_sub_epi32(products, _mm_set1_epi32(corrections[plane]));
    value = _mm256_add_pd(_mm256_mul_pd(value, _mm256_set1_pd(256)), _mm256_cvtepi32_pd(corrected));
  }
  return value;
}

// The outputs of a row in one block, rounded once.
inline void store_row(const Int8Layer& layer, int64_t first_output, const __m256d (&values)[kTilesPerBlock], float* y) {
  alignas(32) double sums[kBlockOutputs];
  for (int tile = 0; tile < kTilesPerBlock; ++tile) _mm256_store_pd(sums + tile * kTileOutputs, values[tile]);
  const int64_t end = std::min(layer.outputs - first_output, kBlockOutputs);
  for (int64_t o = 0; o < end; ++o) {
    const int64_t output = first_output + o;
    const double bias = layer.bias == nullptr ? 0 : layer.bias[output];
    y[output] = static_cast<float>(sums[o] * layer.scales[output] + bias);
  }
}

inline void store_block(const DigitRows& x, const Int8Layer& layer, int64_t first_output, const int32_t* sums,
                        float* const* y) {
  for (int64_t row = 0; row < x.rows; ++row) {
    const int64_t digit_row = row * x.planes;
    const int32_t* const in_panel =
        sums + digit_row / kPanelDigitRows * kPanelSums + digit_row % kPanelDigitRows * kTileOutputs;
    __m256d values[kTilesPerBlock];
    for (int tile = 0; tile < kTilesPerBlock; ++tile) {
      const __m256d value = combine_planes(in_panel + tile * kTileSums, x.corrections + digit_row, x.planes);
      values[tile] = _mm256_mul_pd(value, _mm256_set1_pd(x.units[row]));
    }
    store_row(layer, first_output, values, y[row]);
  }
}

inline void multiply(const DigitRows& x, const Int8Layer& layer, Range blocks, float* const* y) {
  const int64_t panels = (x.rows * x.planes + kPanelDigitRows - 1) / kPanelDigitRows;
  const auto packed = hwy::AllocateAligned<int8_t>(static_cast<size_t>(kBlockOutputs * kSlice));
  const auto sums = hwy::AllocateAligned<int32_t>(static_cast<size_t>(panels * kPanelSums));
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    std::memset(sums.get(), 0, static_cast<size_t>(panels * kPanelSums) * sizeof(int32_t));
    for (int64_t begin = 0; begin < x.padded; begin += kSlice) {
      const Slice slice{begin, std::min(kSlice, x.padded - begin)};
      pack_block(layer, block, slice, packed.get());
      multiply_slice(x, packed.get(), slice, sums.get());
    }
    store_block(x, layer, block * kBlockOutputs, sums.get(), y);
  }
}

#endif  // HWY_TARGET == HWY_AVX3_DL

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_DIGIT_MULTIPLY_INL_H_
