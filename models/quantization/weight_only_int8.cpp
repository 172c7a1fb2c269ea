#include "models/quantization/weight_only_int8.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <narrowcast/linear.h>
#include <narrowcast/weight_only_int8.h>
#include "models/quantization/script_module.h"

namespace narrowcast::models {
namespace {

// The Linear layers of a tree, by the way in which they are converted.
struct Layers {
  std::vector<LinearImpl*> of_ours;
  std::vector<torch::nn::SequentialImpl*> sequentials;  // with torch::nn::Linear children
};

bool is_plain_linear(const torch::nn::Module& module) { return typeid(module) == typeid(torch::nn::LinearImpl); }

// Throws for a class that derives from torch::nn::Linear, since conversion would lose its forward. A class that derives
// from models::LinearImpl keeps its forward, which calls LinearImpl::forward.
void check_not_derived(const std::string& name, const torch::nn::Module& module) {
  const bool is_derived = module.as<torch::nn::LinearImpl>() != nullptr && module.as<LinearImpl>() == nullptr;
  TORCH_CHECK_VALUE(!is_derived || is_plain_linear(module), name.empty() ? "the module" : "submodule '" + name + "'",
                    " is a ", module.name(), ", which derives from torch::nn::Linear: its additions would be lost in ",
                    "int8; derive it from narrowcast::models::LinearImpl, and call that class's forward");
}

// Throws if a plain Linear is the child `name` of a module that is not a Sequential.
void check_replaceable(torch::nn::Module* parent, const std::string& name) {
  TORCH_CHECK_VALUE(parent != nullptr, "the module is itself a torch::nn::Linear, which cannot be replaced in place: ",
                    "make it a narrowcast::models::Linear or put it into a torch::nn::Sequential");
  TORCH_CHECK_VALUE(parent->as<torch::nn::SequentialImpl>() != nullptr, "submodule '", name,
                    "' is a torch::nn::Linear in a ", parent->name(), ", which would still call it: make it a ",
                    "narrowcast::models::Linear or put it into a torch::nn::Sequential");
}

void find_layers(torch::nn::Module* parent, const std::string& name, torch::nn::Module& module, Layers& layers) {
  check_not_derived(name, module);
  if (auto* ours = module.as<LinearImpl>()) {
    layers.of_ours.push_back(ours);
  } else if (is_plain_linear(module)) {
    check_replaceable(parent, name);
    layers.sequentials.push_back(parent->as<torch::nn::SequentialImpl>());
  }
  for (const auto& child : module.named_children()) {
    find_layers(&module, name.empty() ? child.key() : name + "." + child.key(), *child.value(), layers);
  }
}

// A layer that is in several places gets one replacement.
using Replacements = std::map<const torch::nn::Module*, std::shared_ptr<WeightOnlyInt8LinearImpl>>;

void replace_children(torch::nn::SequentialImpl& sequential, Replacements& replacements) {
  auto place = sequential.begin();
  for (const auto& child : sequential.named_children()) {
    if (is_plain_linear(*child.value())) {
      auto& replacement = replacements[child.value().get()];
      if (replacement == nullptr) {
        replacement = WeightOnlyInt8LinearImpl::from(*child.value()->as<torch::nn::LinearImpl>());
      }
      sequential.replace_module(child.key(), replacement);
      *place = torch::nn::AnyModule(replacement);
    }
    ++place;
  }
}

// The implementation of WeightOnlyInt8QuantHandler::convert_for_runtime.
void convert_linear_layers(const std::shared_ptr<torch::nn::Module>& module) {
  Layers layers;
  find_layers(nullptr, "", *module, layers);
  for (LinearImpl* const layer : layers.of_ours) layer->quantize_weight();
  Replacements replacements;
  for (torch::nn::SequentialImpl* const sequential : layers.sequentials) replace_children(*sequential, replacements);
}

// Puts the quantised weight of layer `name` into the state.
void quantize_entry(const std::string& name, const at::Tensor& weight, StateDict& state) {
  const QuantizedWeight quantized = quantize_weight(weight);
  state[entry_of(name, kWeight)] = quantized.codes.to(at::kCPU);
  state[entry_of(name, kScales)] = quantized.scales.to(at::kCPU);
}

}  // namespace

QuantizedWeight quantize_weight(const at::Tensor& weight) {
  TORCH_CHECK_TYPE(weight.is_floating_point(), "weight must be floating, not ", weight.scalar_type());
  const auto [codes, scales, zero_points] =
      dynamically_quantize_per_channel(weight.detach().to(at::kFloat), -128, 127, at::kChar);
  return {codes, scales.to(weight.scalar_type())};
}

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
  weight = register_buffer(kWeight, at::zeros({options.out_features, options.in_features}, at::kChar));
  scales = register_buffer(kScales, at::ones({options.out_features}, options.scales_dtype));
  const at::Tensor start = options.bias ? at::zeros({options.out_features}, options.scales_dtype) : at::Tensor();
  bias = register_parameter("bias", start, /*requires_grad=*/options.bias);
}

void WeightOnlyInt8LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "narrowcast::models::WeightOnlyInt8Linear(in_features=" << options.in_features
         << ", out_features=" << options.out_features << ", bias=" << (options.bias ? "true" : "false") << ")";
}

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
    check_not_derived(item.key(), *item.value());
    const auto* linear = item.value()->as<torch::nn::LinearImpl>();
    if (linear != nullptr && linear->weight.is_floating_point()) quantize_entry(item.key(), linear->weight, state);
  }
  return state;
}

std::shared_ptr<torch::nn::Module> WeightOnlyInt8QuantHandler::convert_for_runtime() {
  convert_linear_layers(module_);
  return module_;
}

ScriptWeightOnlyInt8QuantHandler::ScriptWeightOnlyInt8QuantHandler(torch::jit::Module module)
    : module_(std::move(module)) {}

StateDict ScriptWeightOnlyInt8QuantHandler::create_quantized_state_dict() const {
  StateDict state;
  for (const auto& item : module_.named_parameters()) state.emplace(item.name, item.value.detach());
  for (const auto& item : module_.named_buffers()) state.emplace(item.name, item.value.detach());
  for (const conversion::NamedLayer& item : conversion::find_linear_layers(module_).convertible) {
    quantize_entry(item.name, item.layer.attr(kWeight).toTensor(), state);
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
