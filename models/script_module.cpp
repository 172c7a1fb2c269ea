#include "models/script_module.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <map>
#include <vector>

#include "models/weight_only_int8.h"

namespace narrowcast::models::conversion {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

// Instances of one type; all layers of one shape share a type.
using Instances = std::vector<torch::jit::ObjectPtr>;

// A weight that several layers share is quantised once.
using QuantizedWeights = std::map<const at::TensorImpl*, QuantizedWeight>;

void find_products(Block& block, const Value& self, std::vector<Node*>& products) {
  for (Node* const node : block.nodes()) {
    if (is_product(*node, self)) products.push_back(node);
    for (Block* const inner : node->blocks()) find_products(*inner, self, products);
  }
}

void rewrite_products(Graph& graph) {
  static const auto int8_linear = c10::Symbol::fromQualString("narrowcast::weight_only_int8_linear");
  std::vector<Node*> products;
  find_products(*graph.block(), *graph.inputs()[0], products);
  for (Node* const product : products) {
    const torch::jit::WithInsertPoint here(product);
    Value* const scales = graph.insertGetAttr(graph.inputs()[0], kScales);
    Value* const output = graph.insert(int8_linear, {product->input(0), product->input(1), scales, product->input(2)});
    product->output()->replaceAllUsesWith(output);
    product->destroy();
  }
}

// Replaces the weight by a buffer, and adds a buffer for the scales.
void declare_buffers(const c10::ClassTypePtr& type, const Instances& instances) {
  for (const auto& instance : instances) instance->unsafeRemoveAttr(kWeight);
  type->unsafeRemoveAttribute(kWeight);
  for (const char* const name : {kWeight, kScales}) {
    type->addAttribute(name, c10::TensorType::get(), /*is_parameter=*/false, /*is_buffer=*/true);
  }
}

const QuantizedWeight& quantized(const at::Tensor& weight, QuantizedWeights& weights) {
  const auto found = weights.find(weight.unsafeGetTensorImpl());
  return found != weights.end() ? found->second
                                : weights.emplace(weight.unsafeGetTensorImpl(), quantize_weight(weight)).first->second;
}

void convert_type(const c10::ClassTypePtr& type, const Instances& instances, QuantizedWeights& weights) {
  std::vector<QuantizedWeight> of_instances;
  for (const auto& instance : instances) {
    of_instances.push_back(quantized(instance->getAttr(kWeight).toTensor(), weights));
  }
  declare_buffers(type, instances);
  for (size_t i = 0; i < instances.size(); ++i) {
    instances[i]->setAttr(kWeight, of_instances[i].codes);
    instances[i]->setAttr(kScales, of_instances[i].scales);
  }
  for (torch::jit::Function* const method : type->methods()) {
    rewrite_products(*torch::jit::toGraphFunction(*method).graph());
  }
}

// LibTorch's copies have no hooks, but still call the original's hooks, which accept no other type.
void check_has_no_hooks(const torch::jit::Module& module) {
  for (const auto& item : module.named_modules()) {
    const c10::ClassType& type = *item.value.type();
    TORCH_CHECK_VALUE(type.getForwardHooks().empty() && type.getForwardPreHooks().empty(),
                      item.name.empty() ? "the module" : "submodule '" + item.name + "'",
                      " has forward hooks: a module with hooks cannot be converted");
  }
}

}  // namespace

torch::jit::Module with_int8_linear_layers(const torch::jit::Module& module) {
  check_has_no_hooks(module);
  // `inplace` means that tensors are shared; types and the objects that hold the tensors are new.
  const torch::jit::Module converted = module.clone(/*inplace=*/true);
  std::map<c10::ClassTypePtr, Instances> instances;
  for (const NamedLayer& item : find_linear_layers(converted).convertible) {
    Instances& of_type = instances[item.layer.type()];
    const auto& object = item.layer._ivalue();
    if (std::find(of_type.begin(), of_type.end(), object) == of_type.end()) of_type.push_back(object);
  }
  QuantizedWeights weights;
  for (const auto& [type, of_type] : instances) convert_type(type, of_type, weights);
  return converted;
}

}  // namespace narrowcast::models::conversion
