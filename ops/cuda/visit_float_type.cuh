// A dtype that is known at run time as a C++ type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdexcept>
#include <string>

#include "ops/cuda/float_type.h"

namespace narrowcast::cuda {

// Names T without making one.
template <class T>
struct TypeName {
  using type = T;
};

// visitor(TypeName<T>()) for the T of `type`, which is one of up to 32 bits. std::invalid_argument for any other.
template <class Visitor>
void visit_narrow_float_type(FloatType type, const Visitor& visitor) {
  switch (type) {
    case FloatType::kFloat32:
      return visitor(TypeName<float>());
    case FloatType::kBfloat16:
      return visitor(TypeName<__nv_bfloat16>());
    case FloatType::kFloat16:
      return visitor(TypeName<__half>());
    default:
      throw std::invalid_argument("no CUDA kernel for FloatType " + std::to_string(static_cast<int>(type)));
  }
}

// visitor(TypeName<T>()) for the T of `type`. std::invalid_argument for a number that is no FloatType.
template <class Visitor>
void visit_float_type(FloatType type, const Visitor& visitor) {
  if (type == FloatType::kFloat64) return visitor(TypeName<double>());
  visit_narrow_float_type(type, visitor);
}

}  // namespace narrowcast::cuda
