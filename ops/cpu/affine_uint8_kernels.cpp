#include "ops/cpu/affine_uint8_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace narrowcast::cpu {

template <class T>
AffineRange find_range(const T* x, int64_t n) {
  AffineRange range;
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<float>(x[i]);
    range = codec::merge(range, {value, value});
  }
  return range;
}

template <class T>
AffineQparams choose_qparams(const T* x, int64_t n) {
  return n == 0 ? AffineQparams{} : codec::choose_qparams(find_range(x, n));
}

template <class T>
void quantize(const T* x, int64_t n, AffineQparams qparams, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = codec::quantize(x[i], qparams);
  }
}

template <class T>
AffineQparams choose_qparams_and_quantize(const T* x, int64_t n, uint8_t* codes) {
  const AffineQparams qparams = choose_qparams(x, n);
  quantize(x, n, qparams, codes);
  return qparams;
}

void dequantize(const uint8_t* codes, int64_t n, AffineQparams qparams, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = codec::dequantize(codes[i], qparams);
  }
}

template <class T>
void dequantize_mean(const uint8_t* const* codes, const AffineQparams* qparams, int64_t ranks, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      sum += codec::dequantize(codes[r][i], qparams[r]);
    }
    out[i] = static_cast<T>(sum / static_cast<float>(ranks));
  }
}

#define NARROWCAST_INSTANTIATE(T)                                                     \
  template AffineRange find_range<T>(const T*, int64_t);                              \
  template AffineQparams choose_qparams<T>(const T*, int64_t);                        \
  template void quantize<T>(const T*, int64_t, AffineQparams, uint8_t*);              \
  template AffineQparams choose_qparams_and_quantize<T>(const T*, int64_t, uint8_t*); \
  template void dequantize_mean<T>(const uint8_t* const*, const AffineQparams*, int64_t, int64_t, T*);

NARROWCAST_INSTANTIATE(float)
NARROWCAST_INSTANTIATE(double)
NARROWCAST_INSTANTIATE(c10::BFloat16)
NARROWCAST_INSTANTIATE(c10::Half)

}  // namespace narrowcast::cpu
