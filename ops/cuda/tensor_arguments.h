// Tensors as what launches of kernels are given (launch_arguments.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstdint>

#include "ops/cuda/launch_arguments.h"

namespace narrowcast::cuda {

// c10::TypeError for a dtype that is no float32, float64, bfloat16 or float16.
inline FloatType float_type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return FloatType::kFloat32;
    case at::kDouble:
      return FloatType::kFloat64;
    case at::kBFloat16:
      return FloatType::kBfloat16;
    case at::kHalf:
      return FloatType::kFloat16;
    default:
      TORCH_CHECK_TYPE(false, "dtype must be float32, float64, bfloat16 or float16, not ", dtype);
  }
}

// A dense tensor of floats as so many equal rows, at least one.
inline FloatRows rows_of(const at::Tensor& dense, int64_t rows) {
  return {dense.const_data_ptr(), float_type_of(dense.scalar_type()), rows, dense.numel() / rows};
}

}  // namespace narrowcast::cuda
