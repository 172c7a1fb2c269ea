#include "models/weight_only_int8_linear.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <optional>

#include <narrowcast/weight_only_int8.h>
#include "models/quantize_weight.h"

namespace narrowcast::models {

WeightOnlyInt8LinearImpl::WeightOnlyInt8LinearImpl(const WeightOnlyInt8LinearOptions& options) : options(options) {
  TORCH_CHECK_VALUE(options.in_features >= 0, "in_features must be at least 0, but is ", options.in_features);
  TORCH_CHECK_VALUE(options.out_features >= 0, "out_features must be at least 0, but is ", options.out_features);
  TORCH_CHECK_TYPE(at::isFloatingType(options.scales_dtype), "scales_dtype must be floating, not ",
                   options.scales_dtype);
  WeightOnlyInt8LinearImpl::reset();
}

std::shared_ptr<WeightOnlyInt8LinearImpl> WeightOnlyInt8LinearImpl::from(const torch::nn::LinearImpl& linear) {
  const QuantizedWeight quantized = quantize_weight(linear.weight);
  auto layer = std::make_shared<WeightOnlyInt8LinearImpl>(
      WeightOnlyInt8LinearOptions{.in_features = linear.weight.size(1),
                                  .out_features = linear.weight.size(0),
                                  .bias = linear.bias.defined(),
                                  .scales_dtype = quantized.scales.scalar_type()});
  layer->weight.set_data(quantized.codes);
  layer->scales.set_data(quantized.scales);
  if (linear.bias.defined()) {
    layer->parameters_["bias"] = linear.bias;
    layer->bias = linear.bias;
  }
  layer->train(linear.is_training());
  return layer;
}

at::Tensor WeightOnlyInt8LinearImpl::forward(const at::Tensor& x) {
  return weight_only_int8_linear(x, weight, scales, bias.defined() ? std::optional(bias) : std::nullopt);
}

void WeightOnlyInt8LinearImpl::reset() {
  weight = register_buffer("weight", at::zeros({options.out_features, options.in_features}, at::kChar));
  scales = register_buffer("scales", at::ones({options.out_features}, options.scales_dtype));
  const at::Tensor start = options.bias ? at::zeros({options.out_features}, options.scales_dtype) : at::Tensor();
  bias = register_parameter("bias", start, /*requires_grad=*/options.bias);
}

void WeightOnlyInt8LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "narrowcast::models::WeightOnlyInt8Linear(in_features=" << options.in_features
         << ", out_features=" << options.out_features << ", bias=" << (options.bias ? "true" : "false") << ")";
}

}  // namespace narrowcast::models
