// Digits of few rows times codes: each code meets so few digits that to pack it
// first, as digit_multiply-inl.h does, would cost more than the products. For the
// instruction set being compiled. Included by digit_kernels.cpp, which includes Highway.
#if defined(NARROWCAST_DIGIT_MULTIPLY_FEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_DIGIT_MULTIPLY_FEW_INL_H_
#undef NARROWCAST_DIGIT_MULTIPLY_FEW_INL_H_
#else
#define NARROWCAST_DIGIT_MULTIPLY_FEW_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "ops/cpu/weight_only_int8/digits/digit_kernels.h"
#include "ops/cpu/weight_only_int8/digits/digit_multiply-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// 64 codes, or those that the mask lets through and zeros, with 128 added.
HWY_INLINE __m512i load_unsigned_codes(const int8_t* codes, __mmask64 mask) {
  return _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, codes), _mm512_set1_epi8(static_cast<char>(0x80)));
}

// How far ahead of their use codes are fetched: the processor does not look beyond a page by itself.
constexpr int64_t kPrefetchBytes = 8192;

// sums[d] += digit row d times the 64 codes of the inputs from k on.
template <int kDigitRows>
HWY_INLINE void add_step(const int8_t* digits, const int8_t* codes, int64_t k, __mmask64 mask,
                         __m512i (&sums)[kDigitRows]) {
  const __m512i step = load_unsigned_codes(codes + k, mask);
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) {
    add_products(sums[d], step, _mm512_load_si512(digits + k * kDigitRows + d * kDigitStep));
  }
}

// sums[d] = digit row d times the codes of one output. One output after the other reads the codes as they lie in
// memory, which is faster than several side by side.
template <int kDigitRows>
HWY_INLINE void multiply_output(const int8_t* digits, const int8_t* codes, int64_t inputs,
                                __m512i (&sums)[kDigitRows]) {
  __m512i odd[kDigitRows];  // Twice the chains of sums hide their latency.
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) sums[d] = odd[d] = _mm512_setzero_si512();
  int64_t k = 0;
  for (; k + 2 * kDigitStep <= inputs; k += 2 * kDigitStep) {
    const auto ahead = reinterpret_cast<uintptr_t>(codes) + static_cast<uintptr_t>(k + kPrefetchBytes);
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(ahead + kDigitStep), _MM_HINT_T0);
    add_step<kDigitRows>(digits, codes, k, ~__mmask64{0}, sums);
    add_step<kDigitRows>(digits, codes, k + kDigitStep, ~__mmask64{0}, odd);
  }
  for (; k < inputs; k += kDigitStep) {
    const int64_t left = std::min(inputs - k, kDigitStep);
    add_step<kDigitRows>(digits, codes, k, ~__mmask64{0} >> (kDigitStep - left), sums);
  }
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) sums[d] = _mm512_add_epi32(sums[d], odd[d]);
}

// sums[d * kBlockOutputs + o] = digit row d of a panel of kDigitRows times output o of a tile. Past the layer's end its
// last output stands in.
template <int kDigitRows>
void multiply_codes(const int8_t* digits, const Int8Layer& layer, int64_t first, int32_t* sums) {
  __m512i partial[kDigitRows][kTileOutputs];
  HWY_UNROLL(4)
  for (int o = 0; o < kTileOutputs; ++o) {
    const int64_t output = std::min(first + o, layer.outputs - 1);
    __m512i of_output[kDigitRows];
    multiply_output<kDigitRows>(digits, layer.codes + output * layer.inputs, layer.inputs, of_output);
    HWY_UNROLL(6)
    for (int d = 0; d < kDigitRows; ++d) partial[d][o] = of_output[d];
  }
  HWY_UNROLL(6)
  for (int d = 0; d < kDigitRows; ++d) {
    _mm_store_si128(reinterpret_cast<__m128i*>(sums + d * kBlockOutputs), sums_of_lanes(partial[d]));
  }
}

using MultiplyCodes = void (*)(const int8_t*, const Int8Layer&, int64_t, int32_t*);
constexpr MultiplyCodes kMultiplyCodes[kPanelDigitRows + 1] = {nullptr,
                                                               &multiply_codes<1>,
                                                               &multiply_codes<2>,
                                                               &multiply_codes<3>,
                                                               &multiply_codes<4>,
                                                               &multiply_codes<5>,
                                                               &multiply_codes<6>};

// DigitKernels::multiply for rows whose digits are one panel.
inline void multiply_few(const DigitRows& x, const Int8Layer& layer, Range blocks, float* const* y) {
  HWY_ALIGN int32_t sums[kPanelDigitRows * kBlockOutputs];
  const MultiplyCodes multiply_codes_of_tile = kMultiplyCodes[x.rows * x.planes];
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    for (int64_t o = 0; o < kBlockOutputs; o += kTileOutputs) {
      multiply_codes_of_tile(x.digits, layer, block * kBlockOutputs + o, sums + o);
    }
    store_block(x, layer, block * kBlockOutputs, sums, y);
  }
}

#endif  // HWY_TARGET == HWY_AVX3_DL

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_DIGIT_MULTIPLY_FEW_INL_H_
