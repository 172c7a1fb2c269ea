// What each instruction set offers for FP16 and BFP16, by element type. The
// functions are those of quantize_tensor_kernels.h.
#pragma once

#include <tuple>

#include "ops/cpu/quantize_tensor_kernels.h"

namespace narrowcast::cpu {

// The functions for elements of T.
template <class T>
struct EncodeKernels {
  void (*fp16)(EncodeSpan<T>);
  void (*bfp16)(EncodeSpan<T>);
};

// The functions of one instruction set.
using EncodeKernelTable =
    std::tuple<EncodeKernels<float>, EncodeKernels<double>, EncodeKernels<c10::BFloat16>, EncodeKernels<c10::Half>>;

}  // namespace narrowcast::cpu
