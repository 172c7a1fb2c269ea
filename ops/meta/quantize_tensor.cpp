#include "ops/meta/quantize_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <narrowcast/quantize_tensor.h>

namespace narrowcast::meta {
namespace {

at::Tensor empty_like(const at::Tensor& tensor, at::ScalarType dtype) {
  return at::empty_symint(tensor.sym_sizes(),
                          tensor.options().dtype(dtype).memory_format(at::MemoryFormat::Contiguous));
}

}  // namespace

void check_quantizable(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK_VALUE(tensor.defined(), name, " is an undefined tensor");
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf, name,
                   " must be float32, float64, bfloat16 or float16, not ", dtype);
}

void check_dequantizable(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK_VALUE(tensor.defined(), name, " is an undefined tensor");
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kHalf, name, ": tensor dtype is ", tensor.scalar_type(),
                   " while expected to be FP16.");
}

at::Tensor quantize_tensor(const at::Tensor& x, std::string_view qtype) {
  parse_dquant_type(qtype);
  check_quantizable(x, "x");
  return empty_like(x, at::kHalf);
}

at::Tensor dequantize_tensor(const at::Tensor& q, std::string_view qtype, std::optional<double>) {
  parse_dquant_type(qtype);
  check_dequantizable(q, "q");
  return empty_like(q, at::kFloat);
}

TORCH_LIBRARY_IMPL(narrowcast, Meta, m) {
  m.impl("quantize_tensor", &quantize_tensor);
  m.impl("dequantize_tensor", &dequantize_tensor);
}

}  // namespace narrowcast::meta
