// Symmetric per-channel quantisation (ops/codec/weight_only_int8.h) over arrays. The kernels are vectorised, the
// instruction set is chosen at run time, and all instruction sets give the same bits.
//
// T is float, c10::BFloat16 or c10::Half. Each function runs on the calling thread; to use more threads, split the
// work. Pointers need no alignment, must not overlap, and may be null if the size is 0.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <tuple>

#include "ops/codec/weight_only_int8.h"

namespace narrowcast::cpu {

using codec::CodeRange;

// The largest magnitude of x[0..n); 0 if n is 0, NaN if x contains a NaN.
template <class T>
float find_largest_magnitude(const T* x, int64_t n);

// codes[i] = codec::symmetric_code(x[i], scale, range). Code is int8_t, uint8_t or, for float, int16_t, and holds the
// range. If x contains Inf or NaN, the scale is also Inf or NaN, as codec::symmetric_scale makes it.
template <class T, class Code>
void quantize_symmetric(const T* x, int64_t n, T scale, CodeRange range, Code* codes);

// Instantiated in quantize_kernels.cpp.
#define NARROWCAST_DECLARE_SYMMETRIC(T)                                                         \
  extern template float find_largest_magnitude(const T*, int64_t);                              \
  extern template void quantize_symmetric<T, int8_t>(const T*, int64_t, T, CodeRange, int8_t*); \
  extern template void quantize_symmetric<T, uint8_t>(const T*, int64_t, T, CodeRange, uint8_t*);
NARROWCAST_DECLARE_SYMMETRIC(float)
NARROWCAST_DECLARE_SYMMETRIC(c10::BFloat16)
NARROWCAST_DECLARE_SYMMETRIC(c10::Half)
#undef NARROWCAST_DECLARE_SYMMETRIC
extern template void quantize_symmetric<float, int16_t>(const float*, int64_t, float, CodeRange, int16_t*);

template <class T, class Code>
using QuantizeSymmetric = void (*)(const T*, int64_t, T, CodeRange, Code*);

template <class T>
using FindLargestMagnitude = float (*)(const T*, int64_t);

// The above functions by element type, for one instruction set.
using SymmetricKernelTable =
    std::tuple<FindLargestMagnitude<float>, FindLargestMagnitude<c10::BFloat16>, FindLargestMagnitude<c10::Half>,
               QuantizeSymmetric<float, int8_t>, QuantizeSymmetric<float, uint8_t>, QuantizeSymmetric<float, int16_t>,
               QuantizeSymmetric<c10::BFloat16, int8_t>, QuantizeSymmetric<c10::BFloat16, uint8_t>,
               QuantizeSymmetric<c10::Half, int8_t>, QuantizeSymmetric<c10::Half, uint8_t>>;

}  // namespace narrowcast::cpu
