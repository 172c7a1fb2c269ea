// Weight-only int8 for TorchScript modules.
#pragma once

#include <torch/csrc/jit/api/module.h>

namespace narrowcast::models::conversion {

// What ScriptWeightOnlyInt8QuantHandler::convert_for_runtime (models/weight_only_int8.h) returns.
torch::jit::Module with_int8_linear_layers(const torch::jit::Module& module);

}  // namespace narrowcast::models::conversion
