#include "ops/weight_only_int8.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

namespace narrowcast {

std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype) {
  using Quantize = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, int64_t, int64_t, at::ScalarType);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("narrowcast::dynamically_quantize_per_channel", "")
                             .typed<Quantize>();
  TORCH_CHECK_VALUE(x.defined(), "x is an undefined tensor");
  return op.call(x, quant_min, quant_max, target_dtype);
}

at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias) {
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("narrowcast::weight_only_int8_linear", "").typed<Linear>();
  TORCH_CHECK_VALUE(input.defined(), "input is an undefined tensor");
  return op.call(input, weight, scales, bias);
}

}  // namespace narrowcast
