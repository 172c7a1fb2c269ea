#include "models/module_tree.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <string>
#include <vector>

#include <narrowcast/linear.h>
#include "models/weight_only_int8_linear.h"

namespace narrowcast::models::conversion {
namespace {

using torch::nn::Module;

// The Linear layers of a tree, by what can be done about them.
struct Layers {
  std::vector<LinearImpl*> of_ours;
  std::vector<torch::nn::SequentialImpl*> sequentials;  // which have torch::nn::Linear children
};

bool is_plain_linear(Module& module) {
  return module.as<torch::nn::LinearImpl>() != nullptr && module.as<LinearImpl>() == nullptr;
}

// Throws if a plain Linear is the child `name` of anything but a Sequential.
void check_replaceable(Module* parent, const std::string& name) {
  TORCH_CHECK_VALUE(parent != nullptr, "the module is itself a torch::nn::Linear, which cannot be replaced in place: ",
                    "make it a narrowcast::models::Linear or put it into a torch::nn::Sequential");
  TORCH_CHECK_VALUE(parent->as<torch::nn::SequentialImpl>() != nullptr, "submodule '", name,
                    "' is a torch::nn::Linear in a ", parent->name(), ", which would go on calling it: make it a ",
                    "narrowcast::models::Linear or put it into a torch::nn::Sequential");
}

void find_layers(Module* parent, const std::string& name, Module& module, Layers& layers) {
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

// A layer that is in several places is replaced by one.
using Replacements = std::map<const Module*, std::shared_ptr<WeightOnlyInt8LinearImpl>>;

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

}  // namespace

void convert_linear_layers(const std::shared_ptr<Module>& module) {
  Layers layers;
  find_layers(nullptr, "", *module, layers);
  for (LinearImpl* const layer : layers.of_ours) layer->quantize_weight();
  Replacements replacements;
  for (torch::nn::SequentialImpl* const sequential : layers.sequentials) replace_children(*sequential, replacements);
}

}  // namespace narrowcast::models::conversion
