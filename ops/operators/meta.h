// The dtypes and outputs of all operators' contracts.
//
// A contract (*_meta.h) is the same on every device. Each of its functions checks its operator's arguments and returns
// the outputs on the input's device, allocated and not yet filled. These functions are the meta kernels; CPU and CUDA
// kernels call them first, so that every device has the same errors and outputs. A c10::ValueError or c10::TypeError
// names the argument.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <string_view>

namespace narrowcast::meta {

// The only list of the dtypes that the operators quantise. Calls body(T()), where T is the C++ type of `dtype`, or
// otherwise() for another dtype. Returns the callable's result.
template <class Body, class Otherwise>
auto visit_float_or(at::ScalarType dtype, const Body& body, const Otherwise& otherwise) {
  switch (dtype) {
    case at::kFloat:
      return body(float());
    case at::kDouble:
      return body(double());
    case at::kBFloat16:
      return body(c10::BFloat16());
    case at::kHalf:
      return body(c10::Half());
    default:
      return otherwise();
  }
}

// Whether the operators quantise tensors of that dtype.
inline bool is_float(at::ScalarType dtype) {
  return visit_float_or(
      dtype, [](auto) { return true; }, [] { return false; });
}

// Throws a c10::TypeError that names `name` unless is_float(dtype).
inline void check_float_dtype(std::string_view name, at::ScalarType dtype) {
  TORCH_CHECK_TYPE(is_float(dtype), name, " must be float32, float64, bfloat16 or float16, not ", dtype);
}

// The same for a tensor called `name`.
inline void check_float(std::string_view name, const at::Tensor& tensor) {
  check_float_dtype(name, tensor.scalar_type());
}

// Calls body(T()) for the C++ type T of `dtype`. Throws c10::TypeError for a dtype that the operators do not quantise.
template <class Body>
void visit_float(at::ScalarType dtype, const Body& body) {
  check_float_dtype("dtype", dtype);
  visit_float_or(dtype, body, [] {});
}

// A contiguous tensor of `sizes` and `dtype`, on the device of `like`.
inline at::Tensor empty(c10::SymIntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype) {
  return at::empty_symint(sizes, like.options().dtype(dtype).memory_format(at::MemoryFormat::Contiguous));
}

}  // namespace narrowcast::meta
