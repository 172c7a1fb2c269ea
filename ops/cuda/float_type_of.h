// LibTorch's dtypes as those of the kernels.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "ops/cuda/float_type.h"

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

}  // namespace narrowcast::cuda
