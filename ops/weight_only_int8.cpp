#include <narrowcast/weight_only_int8.h>

#include "ops/dispatch.h"

namespace narrowcast {

std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype) {
  using Quantize = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, int64_t, int64_t, at::ScalarType);
  static const auto op = find_operator<Quantize>("narrowcast::dynamically_quantize_per_channel");
  check_defined(x, "x");
  return op.call(x, quant_min, quant_max, target_dtype);
}

at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias) {
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  static const auto op = find_operator<Linear>("narrowcast::weight_only_int8_linear");
  check_defined(input, "input");
  return op.call(input, weight, scales, bias);
}

}  // namespace narrowcast
