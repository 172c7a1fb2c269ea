#include "ops/meta/quantized_all_reduce.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <narrowcast/wire_format.h>

namespace narrowcast::meta {
namespace {

at::Tensor quantized_all_reduce_kernel(const at::Tensor& x, std::string_view format, std::string_view) {
  return quantized_all_reduce(x, format);
}

void check_kernel(const at::Tensor& x, std::string_view format, std::string_view) {
  check_quantized_all_reduce(x, format);
}

}  // namespace

at::Tensor quantized_all_reduce(const at::Tensor& x, std::string_view format) {
  check_quantized_all_reduce(x, format);
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

void check_quantized_all_reduce(const at::Tensor& x, std::string_view format) {
  parse_wire_format(format);
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
                   "x must be float32, float64, bfloat16 or float16, not ", dtype);
  TORCH_CHECK_VALUE(x.layout() == at::kStrided, "x must be dense, but has layout ", x.layout());
}

TORCH_LIBRARY_IMPL(narrowcast, Meta, m) {
  m.impl("quantized_all_reduce_", &check_kernel);
  m.impl("quantized_all_reduce", &quantized_all_reduce_kernel);
}

}  // namespace narrowcast::meta
