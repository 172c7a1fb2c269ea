// LibTorch's dtypes as the kernels' element types.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "ops/cuda/wire/wire_arguments.h"

namespace narrowcast::cuda {

// c10::TypeError for other dtypes than the four.
inline ElementType element_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return ElementType::kFloat32;
    case c10::ScalarType::Double:
      return ElementType::kFloat64;
    case c10::ScalarType::BFloat16:
      return ElementType::kBfloat16;
    case c10::ScalarType::Half:
      return ElementType::kFloat16;
    default:
      TORCH_CHECK_TYPE(false, "dtype must be float32, float64, bfloat16 or float16, not ", dtype);
  }
}

}  // namespace narrowcast::cuda
