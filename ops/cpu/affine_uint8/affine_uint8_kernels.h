// Affine uint8 (ops/codec/affine_uint8.h) over arrays. The kernels are vectorised, the instruction set is chosen at run
// time, and all instruction sets give the same bits.
//
// T is float, double, c10::BFloat16 or c10::Half. Arithmetic stays in T, except that ranges are found in float32. Each
// function runs on the calling thread; to use more threads, split the work. Pointers need no alignment, must not
// overlap, and may be null if the size is 0. Zero points are in [0, 255].
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <tuple>

#include "ops/codec/affine_uint8.h"

namespace narrowcast::cpu {

using codec::AffineQparams;
using codec::AffineRange;

// The least and the greatest of x[0..n) and 0, as float32; NaN if x contains a NaN. The ranges of parts of an array are
// joined by codec::merge, and codec::choose_qparams converts the result to qparams.
template <class T>
AffineRange find_range(const T* x, int64_t n);

// codec::choose_qparams(find_range(x, n)), or scale 1 and zero point 0 if n is 0.
template <class T>
AffineQparams choose_qparams(const T* x, int64_t n);

// codes[i] = codec::quantize(x[i], qparams).
template <class T>
void quantize(const T* x, int64_t n, AffineQparams qparams, uint8_t* codes);

// choose_qparams and quantize of one row while it is in the first-level cache: one pass over memory for rows of a few
// KiB.
template <class T>
AffineQparams choose_qparams_and_quantize(const T* x, int64_t n, uint8_t* codes);

// out[i] = codec::dequantize(codes[i], qparams).
void dequantize(const uint8_t* codes, int64_t n, AffineQparams qparams, float* out);

// The mean over ranks of the decoded elements, where rank r (0 <= r < ranks, ranks >= 1) has codes[r][0..n) and
// qparams[r]:
//   out[i] = T((((+0 + dequantize of rank 0) + dequantize of rank 1) + ...) / float(ranks))
// It is summed and divided in float32, and rounded to T once.
template <class T>
void dequantize_mean(const uint8_t* const* codes, const AffineQparams* qparams, int64_t ranks, int64_t n, T* out);

// Instantiated in affine_uint8_kernels.cpp.
#define NARROWCAST_DECLARE_AFFINE_UINT8(T)                                                \
  extern template AffineRange find_range(const T*, int64_t);                              \
  extern template AffineQparams choose_qparams(const T*, int64_t);                        \
  extern template void quantize(const T*, int64_t, AffineQparams, uint8_t*);              \
  extern template AffineQparams choose_qparams_and_quantize(const T*, int64_t, uint8_t*); \
  extern template void dequantize_mean(const uint8_t* const*, const AffineQparams*, int64_t, int64_t, T*);
NARROWCAST_DECLARE_AFFINE_UINT8(float)
NARROWCAST_DECLARE_AFFINE_UINT8(double)
NARROWCAST_DECLARE_AFFINE_UINT8(c10::BFloat16)
NARROWCAST_DECLARE_AFFINE_UINT8(c10::Half)
#undef NARROWCAST_DECLARE_AFFINE_UINT8

// The above functions for elements of T, for one instruction set.
template <class T>
struct AffineKernels {
  AffineRange (*find_range)(const T*, int64_t);
  void (*quantize)(const T*, int64_t, AffineQparams, uint8_t*);
  AffineQparams (*choose_qparams_and_quantize)(const T*, int64_t, uint8_t*);
  void (*dequantize_mean)(const uint8_t* const*, const AffineQparams*, int64_t, int64_t, T*);
};

// All functions for one instruction set.
using AffineKernelTable =
    std::tuple<AffineKernels<float>, AffineKernels<double>, AffineKernels<c10::BFloat16>, AffineKernels<c10::Half>>;

}  // namespace narrowcast::cpu
