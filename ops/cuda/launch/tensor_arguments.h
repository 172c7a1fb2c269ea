// Conversion of tensors to arguments of kernel launches (launch_arguments.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#include "ops/cuda/launch/launch_arguments.h"
#include "ops/operators/meta.h"

namespace narrowcast::cuda {

inline FloatType float_type_of(float) { return FloatType::kFloat32; }
inline FloatType float_type_of(double) { return FloatType::kFloat64; }
inline FloatType float_type_of(c10::BFloat16) { return FloatType::kBfloat16; }
inline FloatType float_type_of(c10::Half) { return FloatType::kFloat16; }

// Throws c10::TypeError for a dtype that the operators do not quantise.
inline FloatType float_type_of(at::ScalarType dtype) {
  FloatType type{};
  meta::visit_float(dtype, [&](auto zero) { type = float_type_of(zero); });
  return type;
}

// A dense tensor of floats as `rows` equal rows, at least one.
inline FloatRows rows_of(const at::Tensor& dense, int64_t rows) {
  return {dense.const_data_ptr(), float_type_of(dense.scalar_type()), rows, dense.numel() / rows};
}

}  // namespace narrowcast::cuda
