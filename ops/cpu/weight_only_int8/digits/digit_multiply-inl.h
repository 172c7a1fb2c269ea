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
constexpr int64_t kPackedOutputs = 8;  // of a block, packed at a time
constexpr int64_t kSlice = 2048;  // inputs whose packed codes, with a panel's digits, stay in the first-level cache

// A slice of inputs: k = begin..begin + size, a whole number of steps.
struct Slice {
  int64_t begin;
  int64_t size;
};

// 64 codes, or those that the mask lets through and zeros, with 128 added.
HWY_INLINE void pack_step(const int8_t* codes, __mmask64 mask, int8_t* packed) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));
  _mm512_store_si512(packed, _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, codes), offset));
}

// The codes of one output in steps of 64 every 256 bytes of `packed`, zeros past the inputs' end.
inline void pack_output(const int8_t* codes, int64_t inputs, Slice slice, int8_t* packed) {
  const int8_t* const source = codes + slice.begin;
  // What is packed next: this output's next slice, or after the last the output's in the same place of the next turn.
  const bool is_last = slice.begin + slice.size >= inputs;
  const auto next = reinterpret_cast<uintptr_t>(codes) +
                    static_cast<uintptr_t>(is_last ? kPackedOutputs * inputs : slice.begin + slice.size);
  const int64_t left = std::min(inputs - slice.begin, slice.size);
  int64_t k = 0;
  for (; k + kDigitStep <= left; k += kDigitStep) {
    _mm_prefetch(reinterpret_cast<const char*>(next + static_cast<uintptr_t>(k)), _MM_HINT_T1);
    pack_step(source + k, ~__mmask64{0}, packed + k * kTileOutputs);
  }
  if (k < left) pack_step(source + k, (__mmask64{1} << (left - k)) - 1, packed + k * kTileOutputs);
}

// The slice of the codes of kPackedOutputs outputs: for each tile of four, 64 codes of each output in turn. Outputs
// past the layer's end are copies of its last one.
inline void pack_outputs(const Int8Layer& layer, int64_t first, Slice slice, int8_t* packed) {
  for (int64_t o = 0; o < kPackedOutputs; ++o) {
    const int64_t output = std::min(first + o, layer.outputs - 1);
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

// sums[d * kBlockOutputs + o] += digit row d of a panel of kDigitRows times output o of a tile, over `size` inputs.
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
    auto* const out = reinterpret_cast<__m128i*>(sums + d * kBlockOutputs);
    _mm_store_si128(out, _mm_add_epi32(_mm_load_si128(out), sums_of_lanes(partial[d])));
  }
}

using MultiplyTile = void (*)(const int8_t*, const int8_t*, int64_t, int32_t*);
constexpr MultiplyTile kMultiplyTile[kPanelDigitRows + 1] = {nullptr,           &multiply_tile<1>, &multiply_tile<2>,
                                                             &multiply_tile<3>, &multiply_tile<4>, &multiply_tile<5>,
                                                             &multiply_tile<6>};

// Adds to the sums of a block, [digit row][kBlockOutputs], those of kPackedOutputs of its outputs.
inline void multiply_slice(const DigitRows& x, const int8_t* packed, Slice slice, int32_t* sums) {
  for (int64_t first = 0; first < x.rows * x.planes; first += kPanelDigitRows) {
    const int64_t digit_rows = std::min(kPanelDigitRows, x.rows * x.planes - first);
    const int8_t* const digits = x.digits + first * x.padded + slice.begin * digit_rows;
    for (int64_t o = 0; o < kPackedOutputs; o += kTileOutputs) {
      kMultiplyTile[digit_rows](digits, packed + o * slice.size, slice.size, sums + first * kBlockOutputs + o);
    }
  }
}

// Eight outputs' scale and bias.
struct Scaling {
  Scaling(const Int8Layer& layer, int64_t first, int64_t count)
      : mask(static_cast<__mmask8>((1U << std::clamp<int64_t>(count, 0, 8)) - 1)),
        scales(_mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, layer.scales + first))),
        bias(layer.bias == nullptr ? _mm512_setzero_pd()
                                   : _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, layer.bias + first))) {}
  __mmask8 mask;
  __m512d scales;
  __m512d bias;
};

// Eight outputs of a row from the sums of its planes. In double, where all before the scale is exact, and rounded to
// float32 once.
inline void store_outputs(const int32_t* sums, const DigitRows& x, int64_t row, const Scaling& scaling, float* y) {
  __m512d value = _mm512_setzero_pd();
  for (int64_t plane = 0; plane < x.planes; ++plane) {
    const __m256i products = _mm256_load_si256(reinterpret_cast<const __m256i*>(sums + plane * kBlockOutputs));
    const __m256i corrected = _mm256_sub_epi32(products, _mm256_set1_epi32(x.corrections[row * x.planes + plane]));
    value = _mm512_add_pd(_mm512_mul_pd(value, _mm512_set1_pd(256)), _mm512_cvtepi32_pd(corrected));
  }
  const __m512d product = _mm512_mul_pd(_mm512_mul_pd(value, _mm512_set1_pd(x.units[row])), scaling.scales);
  _mm256_mask_storeu_ps(y, scaling.mask, _mm512_cvtpd_ps(_mm512_add_pd(product, scaling.bias)));
}

inline void store_block(const DigitRows& x, const Int8Layer& layer, int64_t first, const int32_t* sums,
                        float* const* y) {
  const int64_t count = layer.outputs - first;
  const Scaling low(layer, first, count);
  const Scaling high(layer, first + std::min<int64_t>(count, 8), count - 8);
  for (int64_t row = 0; row < x.rows; ++row) {
    const int32_t* const of_row = sums + row * x.planes * kBlockOutputs;
    store_outputs(of_row, x, row, low, y[row] + first);
    if (high.mask != 0) store_outputs(of_row + 8, x, row, high, y[row] + first + 8);
  }
}

// DigitKernels::multiply for any number of rows.
inline void multiply_many(const DigitRows& x, const Int8Layer& layer, Range blocks, float* const* y) {
  const auto size = static_cast<size_t>(x.rows * x.planes * kBlockOutputs);
  const auto packed = hwy::AllocateAligned<int8_t>(static_cast<size_t>(kPackedOutputs * kSlice));
  const auto sums = hwy::AllocateAligned<int32_t>(size);
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    std::memset(sums.get(), 0, size * sizeof(int32_t));
    for (int64_t o = 0; o < kBlockOutputs; o += kPackedOutputs) {
      for (int64_t begin = 0; begin < x.padded; begin += kSlice) {
        const Slice slice{begin, std::min(kSlice, x.padded - begin)};
        pack_outputs(layer, block * kBlockOutputs + o, slice, packed.get());
        multiply_slice(x, packed.get(), slice, sums.get() + o);
      }
    }
    store_block(x, layer, block * kBlockOutputs, sums.get(), y);
  }
}

#endif  // HWY_TARGET == HWY_AVX3_DL

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_DIGIT_MULTIPLY_INL_H_
