// What each instruction set offers for affine uint8, by element type. The
// functions are those of affine_uint8_kernels.h.
#pragma once

#include <cstdint>
#include <tuple>

#include "ops/cpu/affine_uint8_kernels.h"

namespace narrowcast::cpu {

// The functions for elements of T.
template <class T>
struct AffineKernels {
  AffineRange (*find_range)(const T*, int64_t);
  void (*quantize)(const T*, int64_t, AffineQparams, uint8_t*);
  AffineQparams (*choose_qparams_and_quantize)(const T*, int64_t, uint8_t*);
  void (*dequantize_mean)(const uint8_t* const*, const AffineQparams*, int64_t, int64_t, T*);
};

// The functions of one instruction set.
using AffineKernelTable =
    std::tuple<AffineKernels<float>, AffineKernels<double>, AffineKernels<c10::BFloat16>, AffineKernels<c10::Half>>;

}  // namespace narrowcast::cpu
