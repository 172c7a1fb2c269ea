// Weight-only int8 for TorchScript modules: which submodules are Linear layers, which of them can be computed from an
// int8 weight, and a module in which they are.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

#include "models/weight_only_int8.h"

namespace narrowcast::models::conversion {

// A module in another: "" is the other module itself.
struct NamedLayer {
  std::string name;
  torch::jit::Module layer;
};

// The Linear layers of a module: those that can be computed from an int8 weight, and those that stay.
struct ScriptLinearLayers {
  std::vector<NamedLayer> convertible;  // one that has several names is there several times
  std::vector<FloatLayer> others;
};

// A Linear layer has a floating parameter or buffer `weight` [out, in] and is torch.nn.Linear or
// torch.nn.modules.linear.NonDynamicallyQuantizableLinear by its type's name, or has the constants in_features and
// out_features, as scripted classes that derive from it do, or multiplies by its weight (is_product). It is convertible
// if there are such products in its own methods, nothing else uses its weight, and so it is with all modules of its
// TorchScript type: one among them whose weight is of another kind is among the others.
ScriptLinearLayers find_linear_layers(const torch::jit::Module& module);

// Whether the node, of a method of the type whose instance is `self`, is linear(..., self.weight, bias) with a bias
// that is None or self.bias.
bool is_product(const torch::jit::Node& node, const torch::jit::Value& self);

// Returns what ScriptWeightOnlyInt8QuantHandler::convert_for_runtime (models/weight_only_int8.h) does.
torch::jit::Module with_int8_linear_layers(const torch::jit::Module& module);

}  // namespace narrowcast::models::conversion
