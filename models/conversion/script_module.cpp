#include "models/conversion/script_module.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "models/layers/quantize_weight.h"

namespace narrowcast::models::conversion {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace attr = torch::jit::attr;
namespace aten = torch::jit::aten;
namespace prim = torch::jit::prim;

constexpr const char* kWeight = "weight";
constexpr const char* kScales = "scales";

// Instances of one type, which is shared by all layers of one shape.
using Instances = std::vector<torch::jit::ObjectPtr>;

std::string quoted(const std::string& submodule) {
  return submodule.empty() ? "the module" : "submodule '" + submodule + "'";
}

bool is_attribute(const Value* value, const Value* object, const char* name) {
  const Node* const node = value->node();
  return node->kind() == prim::GetAttr && node->s(attr::name) == name && node->input() == object;
}

bool is_none(const Value* value) { return value->type()->kind() == c10::TypeKind::NoneType; }

// The one product of a method that reads attributes, multiplies and returns; null if the method is no such.
Node* find_product(Graph& graph) {
  Node* product = nullptr;
  for (Node* const node : graph.nodes()) {
    if (node->kind() == prim::GetAttr || node->kind() == prim::Constant) continue;
    if (node->kind() != aten::linear || product != nullptr) return nullptr;
    product = node;
  }
  const bool is_linear = product != nullptr && graph.inputs().size() == 2 && graph.outputs().size() == 1 &&
                         graph.outputs()[0] == product->output() && product->input(0) == graph.inputs()[1] &&
                         is_attribute(product->input(1), graph.inputs()[0], kWeight) &&
                         (is_none(product->input(2)) || is_attribute(product->input(2), graph.inputs()[0], "bias"));
  return is_linear ? product : nullptr;
}

void rewrite_method(const std::string& submodule, torch::jit::Function& method) {
  Graph& graph = *torch::jit::toGraphFunction(method).graph();
  torch::jit::Inline(graph);
  Node* const product = find_product(graph);
  TORCH_CHECK_VALUE(product != nullptr, quoted(submodule), " is a Linear whose method ", method.name(),
                    " does more than one product of its input, weight and bias, and cannot be converted");
  const torch::jit::WithInsertPoint here(product);
  Value* const scales = graph.insertGetAttr(graph.inputs()[0], kScales);
  static const auto int8_linear = c10::Symbol::fromQualString("narrowcast::weight_only_int8_linear");
  Value* const output = graph.insert(int8_linear, {product->input(0), product->input(1), scales, product->input(2)});
  product->output()->replaceAllUsesWith(output);
  product->destroy();
}

// The weight becomes a buffer, beside which there is one for the scales.
void declare_buffers(const c10::ClassTypePtr& type, const Instances& instances) {
  for (const auto& instance : instances) instance->unsafeRemoveAttr(kWeight);
  type->unsafeRemoveAttribute(kWeight);
  for (const char* const name : {kWeight, kScales}) {
    type->addAttribute(name, c10::TensorType::get(), /*is_parameter=*/false, /*is_buffer=*/true);
  }
}

void convert_type(const std::string& submodule, const c10::ClassTypePtr& type, const Instances& instances) {
  std::vector<QuantizedWeight> weights;
  for (const auto& instance : instances) weights.push_back(quantize_weight(instance->getAttr(kWeight).toTensor()));
  declare_buffers(type, instances);
  for (size_t i = 0; i < instances.size(); ++i) {
    instances[i]->setAttr(kWeight, weights[i].codes);
    instances[i]->setAttr(kScales, weights[i].scales);
  }
  for (torch::jit::Function* const method : type->methods()) rewrite_method(submodule, *method);
}

bool touches_weight(const Node& node) {
  if ((node.kind() != prim::GetAttr && node.kind() != prim::SetAttr) || node.s(attr::name) != kWeight) return false;
  const auto type = node.input(0)->type()->cast<c10::ClassType>();
  return type != nullptr && is_linear(*type);
}

// What a module that a method uses is called there.
std::string name_of(const Value* module) {
  const Node* const node = module->node();
  return node->kind() == prim::GetAttr ? node->s(attr::name) : module->debugName();
}

// Throws if the block, of a method of `submodule`, reads or writes a Linear layer's weight.
void check_block(const std::string& submodule, const Block& block) {
  for (const Node* const node : block.nodes()) {
    TORCH_CHECK_VALUE(!touches_weight(*node), quoted(submodule), " uses the weight of its Linear layer '",
                      name_of(node->input(0)), "' itself, so that this layer cannot be converted");
    for (const Block* const inner : node->blocks()) check_block(submodule, *inner);
  }
}

// One of the submodules and the layers of its type.
struct LayersOfType {
  std::string submodule;
  Instances instances;
};

std::map<c10::ClassTypePtr, LayersOfType> find_layers(const torch::jit::Module& module) {
  std::map<c10::ClassTypePtr, LayersOfType> layers;
  for (const auto& item : module.named_modules()) {
    if (!is_linear(*item.value.type()) || !item.value.attr(kWeight).toTensor().is_floating_point()) continue;
    LayersOfType& of_type = layers.try_emplace(item.value.type(), LayersOfType{item.name, {}}).first->second;
    const auto& object = item.value._ivalue();
    if (std::find(of_type.instances.begin(), of_type.instances.end(), object) == of_type.instances.end()) {
      of_type.instances.push_back(object);
    }
  }
  return layers;
}

}  // namespace

bool is_linear(const c10::ClassType& type) {
  static const std::vector<std::string> kFolder{"torch", "nn", "modules", "linear"};
  if (!type.name() || type.name()->name() != "Linear") return false;
  const std::vector<std::string>& atoms = type.name()->atoms();
  return std::search(atoms.begin(), atoms.end(), kFolder.begin(), kFolder.end()) != atoms.end();
}

torch::jit::Module with_int8_linear_layers(const torch::jit::Module& module) {
  // In place means that tensors are shared; types and the objects that hold the tensors are new.
  torch::jit::Module converted = module.clone(/*inplace=*/true);
  for (const auto& item : converted.named_modules()) {
    if (is_linear(*item.value.type())) continue;
    for (const torch::jit::Function* const method : item.value.type()->methods()) {
      check_block(item.name, *torch::jit::toGraphFunction(*method).graph()->block());
    }
  }
  for (const auto& [type, layers] : find_layers(converted)) convert_type(layers.submodule, type, layers.instances);
  return converted;
}

}  // namespace narrowcast::models::conversion
