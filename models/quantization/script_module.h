// Weight-only int8 for TorchScript modules: finds the Linear layers of a module, and converts those that can be
// computed from an int8 weight.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

#include "models/quantization/weight_only_int8.h"

namespace narrowcast::models::conversion {

// A module in another; the name "" stands for the other module itself.
struct NamedLayer {
  std::string name;
  torch::jit::Module layer;
};

// The Linear layers of a module: layers that can be computed from an int8 weight, and layers that stay.
struct ScriptLinearLayers {
  std::vector<NamedLayer> convertible;  // a layer that has several names is listed several times
  std::vector<FloatLayer> others;
};

// A Linear layer has a floating-point parameter or buffer `weight` [out, in] and one of these properties:
// - its type's name is torch.nn.Linear or torch.nn.modules.linear.NonDynamicallyQuantizableLinear;
// - it has the constants in_features and out_features, as scripted classes derived from Linear have;
// - its methods multiply by its weight (is_product).
//
// A layer is convertible if there are such products in its own methods, nothing else uses its weight, and the same
// holds for all modules of its TorchScript type. A module of such a type whose weight is of another kind is listed in
// `others`.
ScriptLinearLayers find_linear_layers(const torch::jit::Module& module);

// Whether the node, in a method of the type whose instance is `self`, is linear(..., self.weight, bias) with a bias
// that is None or self.bias.
bool is_product(const torch::jit::Node& node, const torch::jit::Value& self);

// The implementation of ScriptWeightOnlyInt8QuantHandler::convert_for_runtime (models/quantization/weight_only_int8.h).
torch::jit::Module with_int8_linear_layers(const torch::jit::Module& module);

}  // namespace narrowcast::models::conversion
