// Conversion of rows to digits, and of sums of digits to outputs (digit_kernels.h), for the instruction set that is
// being compiled. Included by digit_kernels.cpp, which includes Highway.
#if defined(NARROWCAST_DIGIT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_DIGIT_ROWS_INL_H_
#undef NARROWCAST_DIGIT_ROWS_INL_H_
#else
#define NARROWCAST_DIGIT_ROWS_INL_H_
#endif

#include <c10/util/BFloat16.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cpu/lanes/float_lanes-inl.h"
#include "ops/cpu/weight_only_int8/digit_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// x[k..k + 16), zeros from n on.
HWY_INLINE __m512 load_row(const float* x, int64_t k, int64_t n) {
  const int64_t left = std::clamp<int64_t>(n - k, 0, 16);
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << left) - 1), x + k);
}

HWY_INLINE __m512 load_row(const c10::BFloat16* x, int64_t k, int64_t n) {
  const int64_t left = std::clamp<int64_t>(n - k, 0, 16);
  const __m256i bits = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << left) - 1), x + k);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

struct Magnitudes {
  float largest;
  float sum;
};

template <class T>
Magnitudes find_magnitudes(const T* x, int64_t n) {
  constexpr int kChains = 4;  // chains of sums, to hide their latency
  __m512 largest[kChains];
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) largest[i] = sum[i] = _mm512_setzero_ps();
  for (int64_t k = 0; k < n; k += kChains * 16) {
    HWY_UNROLL(4)
    for (int i = 0; i < kChains; ++i) {
      const __m512 magnitude = _mm512_abs_ps(load_row(x, k + 16 * i, n));
      largest[i] = _mm512_max_ps(largest[i], magnitude);
      sum[i] = _mm512_add_ps(sum[i], magnitude);
    }
  }
  const __m512 all_largest =
      _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3]));
  const __m512 all_sums = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
  return {_mm512_reduce_max_ps(all_largest), _mm512_reduce_add_ps(all_sums)};
}

// With NaN or Inf, the sum is not finite. Values beyond 2^+-100 would overflow or underflow float32 when converted to
// units.
template <class T>
int64_t planes_for(const T* x, int64_t n) {
  constexpr int64_t kLeast = std::is_same_v<T, float> ? 3 : 2;
  constexpr double kMostOverMean = 64;
  const Magnitudes magnitudes = find_magnitudes(x, n);
  if (magnitudes.sum == 0) {
    return kLeast;
  }
  const double largest = magnitudes.largest;
  if (!std::isfinite(magnitudes.sum) || largest < 0x1p-100 || largest > 0x1p100) {
    return 0;
  }
  const double as_if_all_largest = largest * static_cast<double>(n);
  if (as_if_all_largest <= kMostOverMean * magnitudes.sum) {
    return kLeast;
  }
  return kLeast < 3 && as_if_all_largest <= 256 * kMostOverMean * magnitudes.sum ? 3 : 0;
}

// The exponent of the largest power of two that scales `largest` into the range of the digits.
inline int exponent_for(double largest, int64_t planes) {
  const double range = planes == 3 ? 127 * 65536 + 127 * 256 + 127 : 127 * 256 + 127;
  int exponent = 0;
  if (largest > 0) std::frexp(range / largest, &exponent);
  return exponent - 1;
}

// The first digit of row `row` in plane 0, and the distance between its steps.
struct DigitPlace {
  int8_t* first;
  int64_t step;
};

inline DigitPlace place_of(const DigitRows& x, int64_t row) {
  const int64_t digit_row = row * x.planes;
  const int64_t panel = digit_row / kPanelDigitRows;
  const int64_t in_panel = std::min(kPanelDigitRows, x.rows * x.planes - panel * kPanelDigitRows);
  return {x.digits + panel * kPanelDigitRows * x.padded + digit_row % kPanelDigitRows * kDigitStep,
          in_panel * kDigitStep};
}

// Writes sixteen values as digits, one plane after the other, 64 bytes apart, and adds the digits to `sums`.
template <int kPlanes>
HWY_INLINE void store_digits(__m512i value, int8_t* out, __m512i (&sums)[kPlanes]) {
  HWY_UNROLL(3)
  for (int plane = kPlanes - 1; plane >= 0; --plane) {
    const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(value, 24), 24);
    const __m512i digit = plane == 0 ? value : low;
    sums[plane] = _mm512_add_epi32(sums[plane], digit);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + plane * kDigitStep), _mm512_cvtepi32_epi8(digit));
    value = _mm512_srai_epi32(_mm512_sub_epi32(value, digit), 8);
  }
}

template <int kPlanes, class T>
void split_into(const T* x, int64_t n, int64_t row, const DigitRows& out) {
  const int exponent = exponent_for(find_magnitudes(x, n).largest, kPlanes);
  const __m512 per_unit = _mm512_set1_ps(std::ldexp(1.0F, exponent));
  const DigitPlace place = place_of(out, row);
  __m512i sums[kPlanes];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t k = 0; k < out.padded; k += 16) {
    const __m512i value = _mm512_cvtps_epi32(_mm512_mul_ps(load_row(x, k, n), per_unit));
    store_digits<kPlanes>(value, place.first + k / kDigitStep * place.step + k % kDigitStep, sums);
  }
  out.units[row] = std::ldexp(1.0, -exponent);
  for (int plane = 0; plane < kPlanes; ++plane) {
    out.corrections[row * kPlanes + plane] = 128 * _mm512_reduce_add_epi32(sums[plane]);
  }
}

template <class T>
void split(const T* x, int64_t n, int64_t row, const DigitRows& out) {
  out.planes == 3 ? split_into<3>(x, n, row, out) : split_into<2>(x, n, row, out);
}

// The scale and bias of eight outputs; undefined values beyond the layer's end.
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

// Eight outputs of a row from the sums of its planes. The computation is in double, where it is exact before the scale
// is applied, and is rounded to float32 once.
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

// Writes a block's outputs of every row, from its sums, [digit row][kBlockOutputs].
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

#endif  // NARROWCAST_DIGIT_ROWS_INL_H_
