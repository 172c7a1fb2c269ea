#include "ops/operators/weight_only_int8_meta.h"

#include <ATen/core/DimVector.h>
#include <c10/core/SymInt.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <limits>

#include "ops/operators/meta.h"

namespace narrowcast::meta {
namespace {

void check_rows(const at::Tensor& x) {
  check_float("x", x);
  TORCH_CHECK_VALUE(x.dim() == 2, "x must have 2 dimensions, but has shape ", x.sym_sizes());
  TORCH_CHECK_VALUE(x.sym_size(1).sym_ne(0).expect_true(__FILE__, __LINE__),
                    "x has channels without elements: its shape is ", x.sym_sizes());
}

template <class Code>
void check_range(int64_t quant_min, int64_t quant_max, at::ScalarType target_dtype) {
  constexpr int64_t kLeast = std::numeric_limits<Code>::min();
  constexpr int64_t kGreatest = std::numeric_limits<Code>::max();
  TORCH_CHECK_VALUE(quant_min >= kLeast, "quant_min must be at least ", kLeast, " for target_dtype ", target_dtype,
                    ", but is ", quant_min);
  TORCH_CHECK_VALUE(quant_max <= kGreatest, "quant_max must be at most ", kGreatest, " for target_dtype ", target_dtype,
                    ", but is ", quant_max);
  TORCH_CHECK_VALUE(quant_min < quant_max, "quant_min must be less than quant_max, but they are ", quant_min, " and ",
                    quant_max);
}

void check_target(const at::Tensor& x, int64_t quant_min, int64_t quant_max, at::ScalarType target_dtype) {
  if (target_dtype == at::kChar) {
    check_range<int8_t>(quant_min, quant_max, target_dtype);
  } else if (target_dtype == at::kByte) {
    check_range<uint8_t>(quant_min, quant_max, target_dtype);
  } else {
    TORCH_CHECK_TYPE(target_dtype == at::kShort && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble),
                     "target_dtype must be int8 or uint8, or int16 for float32 and float64 x, not ", target_dtype,
                     " for ", x.scalar_type(), " x");
    check_range<int16_t>(quant_min, quant_max, target_dtype);
  }
}

void check_input(const at::Tensor& input) {
  check_float("input", input);
  TORCH_CHECK_VALUE(input.dim() >= 1, "input must have a last dimension, the layer's inputs, but is 0-dimensional");
}

void check_on_device_of_input(const at::Tensor& tensor, const char* name, const at::Tensor& input) {
  TORCH_CHECK_VALUE(tensor.defined(), name, " is an undefined tensor");
  TORCH_CHECK_VALUE(tensor.device() == input.device(), name, " is on ", tensor.device(), " but input is on ",
                    input.device());
}

void check_weight(const at::Tensor& weight, const at::Tensor& input) {
  check_on_device_of_input(weight, "weight", input);
  TORCH_CHECK_TYPE(weight.scalar_type() == at::kChar, "weight must be int8, not ", weight.scalar_type());
  TORCH_CHECK_VALUE(weight.dim() == 2, "weight must have shape [out, in], but has shape ", weight.sym_sizes());
  TORCH_CHECK_VALUE(weight.sym_size(1).sym_eq(input.sym_size(-1)).expect_true(__FILE__, __LINE__), "weight of shape ",
                    weight.sym_sizes(), " needs input with a last dimension of ", weight.sym_size(1),
                    ", but input has shape ", input.sym_sizes());
}

void check_one_value_per_output(const at::Tensor& values, const char* name, const at::Tensor& weight) {
  check_float(name, values);
  const c10::SymInt outputs = weight.sym_size(0);
  TORCH_CHECK_VALUE(values.dim() == 1 && values.sym_size(0).sym_eq(outputs).expect_true(__FILE__, __LINE__), name,
                    " must have shape [", outputs, "], one value per output of weight, but has shape ",
                    values.sym_sizes());
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype) {
  check_rows(x);
  check_target(x, quant_min, quant_max, target_dtype);
  const c10::SymInt channels = x.sym_size(0);
  return {empty(x.sym_sizes(), x, target_dtype), empty({channels}, x, x.scalar_type()),
          empty({channels}, x, at::kLong)};
}

at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias) {
  check_input(input);
  check_weight(weight, input);
  check_on_device_of_input(scales, "scales", input);
  check_one_value_per_output(scales, "scales", weight);
  if (bias.has_value()) {
    check_on_device_of_input(*bias, "bias", input);
    check_one_value_per_output(*bias, "bias", weight);
  }
  c10::SymDimVector sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  sizes.back() = weight.sym_size(0);
  return empty(sizes, input, input.scalar_type());
}

TORCH_LIBRARY_IMPL(narrowcast, Meta, m) {
  m.impl("dynamically_quantize_per_channel", &dynamically_quantize_per_channel);
  m.impl("weight_only_int8_linear", &weight_only_int8_linear);
}

}  // namespace narrowcast::meta
