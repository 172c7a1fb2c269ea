// Weight-only int8 for trees of torch::nn modules.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace narrowcast::models::conversion {

// What WeightOnlyInt8QuantHandler::convert_for_runtime (models/weight_only_int8.h) does to its module.
void convert_linear_layers(const std::shared_ptr<torch::nn::Module>& module);

}  // namespace narrowcast::models::conversion
