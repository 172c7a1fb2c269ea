#include <narrowcast/linear.h>

#include <c10/core/GradMode.h>

#include <narrowcast/weight_only_int8.h>
#include "models/quantization/weight_only_int8.h"

namespace narrowcast::models {

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  if (is_quantized()) {
    return weight_only_int8_linear(x, weight, scales, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  return torch::nn::LinearImpl::forward(x);
}

void LinearImpl::quantize_weight() {
  if (is_quantized()) {
    return;
  }
  const QuantizedWeight quantized = models::quantize_weight(weight);
  parameters_.erase(kWeight);
  weight = register_buffer(kWeight, quantized.codes);
  scales = register_buffer(kScales, quantized.scales);
}

std::shared_ptr<torch::nn::Module> LinearImpl::clone(const std::optional<c10::Device>& device) const {
  const c10::AutoGradMode no_grad(false);
  const auto copy = std::make_shared<LinearImpl>(options);
  if (is_quantized()) {
    copy->quantize_weight();
  }
  const c10::Device place = device.value_or(weight.device());
  copy->weight.set_data(weight.to(place, weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  for (const auto& [from, to] : {std::pair(bias, copy->bias), std::pair(scales, copy->scales)}) {
    if (from.defined()) to.set_data(from.to(place, from.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  }
  copy->train(is_training());
  return copy;
}

}  // namespace narrowcast::models
