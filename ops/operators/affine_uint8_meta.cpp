#include "ops/operators/affine_uint8_meta.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include "ops/operators/meta.h"

namespace narrowcast::meta {
namespace {

// A tensor argument and its name in the schema.
struct Argument {
  const char* name;
  const at::Tensor& tensor;
};

void check_q(const at::Tensor& q) {
  TORCH_CHECK_TYPE(q.scalar_type() == at::kByte, "q must be uint8, not ", q.scalar_type());
}

void check_on_device_of(Argument main, Argument other) {
  TORCH_CHECK_VALUE(other.tensor.defined(), other.name, " is an undefined tensor");
  TORCH_CHECK_VALUE(other.tensor.device() == main.tensor.device(), other.name, " is on ", other.tensor.device(),
                    " but ", main.name, " is on ", main.tensor.device());
}

void check_qparams(Argument main, Argument scale, Argument zero_point) {
  check_on_device_of(main, scale);
  check_on_device_of(main, zero_point);
  TORCH_CHECK_TYPE(scale.tensor.scalar_type() == at::kFloat, scale.name, " must be float32, not ",
                   scale.tensor.scalar_type());
  const at::ScalarType dtype = zero_point.tensor.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kInt || dtype == at::kFloat, zero_point.name, " must be int32 or float32, not ", dtype);
}

void check_one_value(Argument argument) {
  TORCH_CHECK_VALUE(argument.tensor.dim() <= 1 && argument.tensor.sym_numel().sym_eq(1).expect_true(__FILE__, __LINE__),
                    argument.name, " must hold one value, but has shape ", argument.tensor.sym_sizes());
}

void check_has_channels(Argument main) {
  TORCH_CHECK_VALUE(main.tensor.dim() >= 1, main.name, " must have a dimension 0, the channels, but is 0-dimensional");
}

void check_one_value_per_channel(Argument main, Argument argument) {
  check_has_channels(main);
  const c10::SymInt channels = main.tensor.sym_size(0);
  TORCH_CHECK_VALUE(
      argument.tensor.dim() == 1 && argument.tensor.sym_size(0).sym_eq(channels).expect_true(__FILE__, __LINE__),
      argument.name, " must have shape [", channels, "], one value per channel of ", main.name, ", but has shape ",
      argument.tensor.sym_sizes());
}

std::tuple<at::Tensor, at::Tensor> empty_qparams(const at::Tensor& x, const c10::SymInt& channels) {
  return {empty({channels}, x, at::kFloat), empty({channels}, x, at::kInt)};
}

at::Tensor empty_codes(const at::Tensor& x) { return empty(x.sym_sizes(), x, at::kByte); }

at::Tensor empty_decoded(const at::Tensor& q) { return empty(q.sym_sizes(), q, at::kFloat); }

}  // namespace

std::tuple<at::Tensor, at::Tensor> choose_qparams_per_tensor(const at::Tensor& x) {
  check_float("x", x);
  return empty_qparams(x, 1);
}

std::tuple<at::Tensor, at::Tensor> choose_qparams_per_channel(const at::Tensor& x) {
  check_float("x", x);
  check_has_channels({"x", x});
  const c10::SymInt channels = x.sym_size(0);
  TORCH_CHECK_VALUE(channels.sym_eq(0).sym_or(x.sym_numel().sym_ne(0)).expect_true(__FILE__, __LINE__),
                    "x has channels without elements: its shape is ", x.sym_sizes());
  return empty_qparams(x, channels);
}

at::Tensor quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
  check_float("x", x);
  check_qparams({"x", x}, {"scale", scale}, {"zero_point", zero_point});
  check_one_value({"scale", scale});
  check_one_value({"zero_point", zero_point});
  return empty_codes(x);
}

at::Tensor quantize_per_channel(const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points) {
  check_float("x", x);
  check_qparams({"x", x}, {"scales", scales}, {"zero_points", zero_points});
  check_one_value_per_channel({"x", x}, {"scales", scales});
  check_one_value_per_channel({"x", x}, {"zero_points", zero_points});
  return empty_codes(x);
}

at::Tensor dequantize_per_tensor(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point) {
  check_q(q);
  check_qparams({"q", q}, {"scale", scale}, {"zero_point", zero_point});
  check_one_value({"scale", scale});
  check_one_value({"zero_point", zero_point});
  return empty_decoded(q);
}

at::Tensor dequantize_per_channel(const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points) {
  check_q(q);
  check_qparams({"q", q}, {"scales", scales}, {"zero_points", zero_points});
  check_one_value_per_channel({"q", q}, {"scales", scales});
  check_one_value_per_channel({"q", q}, {"zero_points", zero_points});
  return empty_decoded(q);
}

TORCH_LIBRARY_IMPL(narrowcast, Meta, m) {
  m.impl("choose_qparams_per_tensor", &choose_qparams_per_tensor);
  m.impl("choose_qparams_per_channel", &choose_qparams_per_channel);
  m.impl("quantize_per_tensor", &quantize_per_tensor);
  m.impl("quantize_per_channel", &quantize_per_channel);
  m.impl("dequantize_per_tensor", &dequantize_per_tensor);
  m.impl("dequantize_per_channel", &dequantize_per_channel);
}

}  // namespace narrowcast::meta
