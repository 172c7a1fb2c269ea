#include "models/weight_only_int8.h"

#include <c10/util/Exception.h>

#include <utility>

#include "models/module_tree.h"
#include "models/quantize_weight.h"
#include "models/script_linear_layers.h"
#include "models/script_module.h"

namespace narrowcast::models {
namespace {

// Puts the quantised weight of layer `name` into the state.
void quantize_entry(const std::string& name, const at::Tensor& weight, StateDict& state) {
  const QuantizedWeight quantized = quantize_weight(weight);
  const std::string prefix = name.empty() ? name : name + ".";
  state[prefix + "weight"] = quantized.codes.to(at::kCPU);
  state[prefix + "scales"] = quantized.scales.to(at::kCPU);
}

}  // namespace

WeightOnlyInt8QuantHandler::WeightOnlyInt8QuantHandler(std::shared_ptr<torch::nn::Module> module)
    : module_(std::move(module)) {
  TORCH_CHECK_VALUE(module_ != nullptr, "module is null");
}

StateDict WeightOnlyInt8QuantHandler::create_quantized_state_dict() const {
  StateDict state;
  for (const auto& items : {module_->named_parameters(), module_->named_buffers()}) {
    for (const auto& item : items) {
      if (item.value().defined()) state.emplace(item.key(), item.value().detach());
    }
  }
  for (const auto& item : module_->named_modules()) {
    const auto* linear = item.value()->as<torch::nn::LinearImpl>();
    if (linear != nullptr && linear->weight.is_floating_point()) quantize_entry(item.key(), linear->weight, state);
  }
  return state;
}

std::shared_ptr<torch::nn::Module> WeightOnlyInt8QuantHandler::convert_for_runtime() {
  conversion::convert_linear_layers(module_);
  return module_;
}

ScriptWeightOnlyInt8QuantHandler::ScriptWeightOnlyInt8QuantHandler(torch::jit::Module module)
    : module_(std::move(module)) {}

StateDict ScriptWeightOnlyInt8QuantHandler::create_quantized_state_dict() const {
  StateDict state;
  for (const auto& item : module_.named_parameters()) state.emplace(item.name, item.value.detach());
  for (const auto& item : module_.named_buffers()) state.emplace(item.name, item.value.detach());
  for (const conversion::NamedLayer& item : conversion::find_linear_layers(module_).convertible) {
    quantize_entry(item.name, item.layer.attr("weight").toTensor(), state);
  }
  return state;
}

std::vector<FloatLayer> ScriptWeightOnlyInt8QuantHandler::layers_that_stay() const {
  return conversion::find_linear_layers(module_).others;
}

torch::jit::Module ScriptWeightOnlyInt8QuantHandler::convert_for_runtime() const {
  return conversion::with_int8_linear_layers(module_);
}

}  // namespace narrowcast::models
