// Sums of digits to outputs, as digit_kernels.h says, for the instruction set
// being compiled. Included by digit_multiply-inl.h.
#if defined(NARROWCAST_DIGIT_STORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_DIGIT_STORE_INL_H_
#undef NARROWCAST_DIGIT_STORE_INL_H_
#else
#define NARROWCAST_DIGIT_STORE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "ops/cpu/float_lanes-inl.h"
#include "ops/cpu/weight_only_int8/digit_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// Eight outputs' scale and bias; anything past the layer's end.
struct Scaling {
  Scaling() = default;
  Scaling(const Int8Layer& layer, int64_t first) {
    const auto mask = static_cast<__mmask8>((1U << std::clamp<int64_t>(layer.outputs - first, 0, 8)) - 1);
    scales = _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, layer.scales + first));
    if (layer.bias != nullptr) bias = _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, layer.bias + first));
  }
  __m512d scales;
  __m512d bias = _mm512_setzero_pd();
};

// Eight outputs of a row from the sums of its planes. In double, where all before the scale is exact, and rounded to
// float32 once.
HWY_INLINE __m256 scale_sums(const int32_t* sums, const DigitRows& x, int64_t row, const Scaling& scaling) {
  __m512d value = _mm512_setzero_pd();
  for (int64_t plane = 0; plane < x.planes; ++plane) {
    const __m256i products = _mm256_load_si256(reinterpret_cast<const __m256i*>(sums + plane * kBlockOutputs));
    const __m256i corrected = _mm256_sub_epi32(products, _mm256_set1_epi32(x.corrections[row * x.planes + plane]));
    value = _mm512_fmadd_pd(value, _mm512_set1_pd(256), _mm512_cvtepi32_pd(corrected));
  }
  const __m512d product = _mm512_mul_pd(_mm512_mul_pd(value, _mm512_set1_pd(x.units[row])), scaling.scales);
  return _mm512_cvtpd_ps(_mm512_add_pd(product, scaling.bias));
}

// A block's outputs of every row from its sums, [digit row][kBlockOutputs].
template <class T>
void store_block(const DigitRows& x, const Int8Layer& layer, int64_t first, const int32_t* sums, T* const* y) {
  const hn::FixedTag<float, 8> d;
  const int64_t count = std::min(kBlockOutputs, layer.outputs - first);
  Scaling scalings[kBlockOutputs / 8];
  for (int64_t o = 0; o < count; o += 8) scalings[o / 8] = Scaling(layer, first + o);
  for (int64_t row = 0; row < x.rows; ++row) {
    T outputs[kBlockOutputs];
    T* const out = count == kBlockOutputs ? y[row] + first : outputs;
    for (int64_t o = 0; o < count; o += 8) {
      const __m256 scaled = scale_sums(sums + row * x.planes * kBlockOutputs + o, x, row, scalings[o / 8]);
      store_floats(d, hn::Vec<decltype(d)>{scaled}, out + o);
    }
    if (out == outputs) std::copy_n(outputs, count, y[row] + first);
  }
}

#endif  // HWY_TARGET == HWY_AVX3_DL

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_DIGIT_STORE_INL_H_
