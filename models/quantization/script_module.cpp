#include "models/quantization/script_module.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/quantization/weight_only_int8.h"
#include "ops/operators/meta.h"

namespace narrowcast::models::conversion {
namespace {

using c10::ClassType;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace attr = torch::jit::attr;
namespace aten = torch::jit::aten;
namespace prim = torch::jit::prim;

bool is_attribute(const Value& value, const Value& self, const char* name) {
  const Node* const node = value.node();
  return node->kind() == prim::GetAttr && node->s(attr::name) == name && node->input() == &self;
}

Graph& graph_of(torch::jit::Function& function) { return *torch::jit::toGraphFunction(function).graph(); }

// Calls visit with every node of the block, of its inner blocks and of the graphs that it forks.
void for_each_node(const Block& block, const std::function<void(const Node&)>& visit) {
  for (const Node* const node : block.nodes()) {
    visit(*node);
    for (const Block* const inner : node->blocks()) for_each_node(*inner, visit);
    if (node->hasAttribute(attr::Subgraph)) for_each_node(*node->g(attr::Subgraph)->block(), visit);
  }
}

bool is_named_linear(const ClassType& type) {
  static const std::vector<std::string> kFolder{"torch", "nn", "modules", "linear"};
  if (!type.name() || (type.name()->name() != "Linear" && type.name()->name() != "NonDynamicallyQuantizableLinear")) {
    return false;
  }
  const std::vector<std::string>& atoms = type.name()->atoms();
  return std::search(atoms.begin(), atoms.end(), kFolder.begin(), kFolder.end()) != atoms.end();
}

bool multiplies_by_its_weight(const ClassType& type) {
  bool multiplies = false;
  for (torch::jit::Function* const method : type.methods()) {
    const Graph& graph = graph_of(*method);
    for_each_node(*graph.block(),
                  [&](const Node& node) { multiplies = multiplies || is_product(node, *graph.inputs()[0]); });
  }
  return multiplies;
}

bool is_linear(const torch::jit::Module& module) {
  const ClassType& type = *module.type();
  const auto slot = type.findAttributeSlot(kWeight);
  if (!slot || !(type.is_parameter(*slot) || type.is_buffer(*slot)) || !module.attr(kWeight).isTensor()) return false;
  const at::Tensor weight = module.attr(kWeight).toTensor();
  return weight.defined() && weight.is_floating_point() && weight.dim() == 2 &&
         (is_named_linear(type) || (type.hasConstant("in_features") && type.hasConstant("out_features")) ||
          multiplies_by_its_weight(type));
}

std::string quoted(const std::string& name) { return name.empty() ? "the module" : "'" + name + "'"; }

// A reason why one layer of a type cannot be converted, or no layer of it if `layer` is null.
struct Obstacle {
  const c10::ivalue::Object* layer;
  std::string reason;
};

// The modules of Linear layers' types, and the obstacles of each type.
class LayerSearch {
 public:
  explicit LayerSearch(const torch::jit::Module& module) {
    for (const auto& item : module.named_modules()) {
      if (is_linear(item.value)) obstacles_.try_emplace(item.value.type().get());
    }
    // A type declares that there is a tensor; it does not identify the tensor. So all modules of a Linear layer's type
    // are converted together or not at all.
    for (const auto& item : module.named_modules()) {
      if (!obstacles_.contains(item.value.type().get())) continue;
      layers_.push_back({item.name, item.value});
      names_.try_emplace(item.value._ivalue().get(), item.name);
    }
    for (const NamedLayer& item : layers_) find_obstacles_in(item.layer);
    for (const auto& item : module.named_modules()) find_uses(item.name, item.value);
  }

  ScriptLinearLayers result() const {
    ScriptLinearLayers found;
    std::set<const c10::ivalue::Object*> seen;
    for (const NamedLayer& item : layers_) {
      const std::string reason = reason_to_stay(item.layer);
      if (reason.empty()) {
        found.convertible.push_back(item);
      } else if (seen.insert(item.layer._ivalue().get()).second) {
        found.others.push_back({item.name, reason});
      }
    }
    return found;
  }

 private:
  void add(const ClassType* type, const c10::ivalue::Object* layer, std::string reason) {
    obstacles_.at(type).push_back({layer, std::move(reason)});
  }

  // Obstacles in its tensors and attributes.
  void find_obstacles_in(const torch::jit::Module& layer) {
    const auto fail = [&](std::string reason) { add(layer.type().get(), layer._ivalue().get(), std::move(reason)); };
    if (!is_linear(layer)) {
      fail("its weight is not a floating-point matrix");
      return;
    }
    const at::Tensor weight = layer.attr(kWeight).toTensor();
    const at::ScalarType dtype = weight.scalar_type();
    if (!meta::is_float(dtype)) {
      fail("its weight is " + std::string(c10::toString(dtype)));
    }
    if (weight.size(1) == 0) fail("it has no inputs");
    if (layer.type()->findAttribute(kScales) != nullptr) fail("it already has an attribute " + quoted(kScales));
    if (layer.hasattr("bias") && layer.attr("bias").isTensor()) {
      const at::Tensor bias = layer.attr("bias").toTensor();
      if (bias.dim() != 1 || bias.size(0) != weight.size(0)) fail("its bias does not have one value per output");
    }
  }

  // Uses of Linear layers' weights in the module's methods.
  void find_uses(const std::string& name, const torch::jit::Module& module) {
    for (torch::jit::Function* const method : module.type()->methods()) {
      const Graph& graph = graph_of(*method);
      const Value& self = *graph.inputs()[0];
      for_each_node(*graph.block(), [&](const Node& node) {
        const ClassType* const type = accessed_type(node);
        if (type == nullptr) return;
        if (node.input(0) != &self) {
          add(type, layer_of(*node.input(0), self, module), quoted(name) + " uses its weight directly");
        } else if (!is_for_products(node, self)) {
          add(type, nullptr,
              "its method " + method->name() + " uses the weight in another operation than a multiplication");
        }
      });
    }
  }

  // The type of Linear layers whose weight the node reads or writes; null if it accesses no such weight.
  const ClassType* accessed_type(const Node& node) const {
    if ((node.kind() != prim::GetAttr && node.kind() != prim::SetAttr) || node.s(attr::name) != kWeight) return nullptr;
    const auto type = node.input(0)->type()->cast<ClassType>();
    return type != nullptr && obstacles_.contains(type.get()) ? type.get() : nullptr;
  }

  static bool is_for_products(const Node& node, const Value& self) {
    if (node.kind() != prim::GetAttr) return false;
    const auto& uses = node.output()->uses();
    return std::all_of(uses.begin(), uses.end(),
                       [&](const torch::jit::Use& use) { return use.offset == 1 && is_product(*use.user, self); });
  }

  // The submodule that `value` stands for in a method of `module`; null if it is not a chain of attributes.
  static const c10::ivalue::Object* layer_of(const Value& value, const Value& self, const torch::jit::Module& module) {
    std::vector<std::string> path;
    const Value* owner = &value;
    for (; owner->node()->kind() == prim::GetAttr; owner = owner->node()->input()) {
      path.push_back(owner->node()->s(attr::name));
    }
    if (owner != &self) return nullptr;
    torch::jit::Module found = module;
    for (auto name = path.rbegin(); name != path.rend(); ++name) found = found.attr(*name).toModule();
    return found._ivalue().get();
  }

  // Empty if the layer is convertible. Layers of one type share their methods, so they are converted together or not at
  // all.
  std::string reason_to_stay(const torch::jit::Module& layer) const {
    const std::vector<Obstacle>& obstacles = obstacles_.at(layer.type().get());
    for (const Obstacle& obstacle : obstacles) {
      if (obstacle.layer == nullptr || obstacle.layer == layer._ivalue().get()) return obstacle.reason;
    }
    if (obstacles.empty()) {
      return multiplies_by_its_weight(*layer.type()) ? "" : "none of its methods multiplies by its weight";
    }
    return "it has the same TorchScript type as " + quoted(names_.at(obstacles[0].layer)) +
           ", which cannot be converted: " + obstacles[0].reason;
  }

  std::vector<NamedLayer> layers_;
  std::map<const c10::ivalue::Object*, std::string> names_;
  std::map<const ClassType*, std::vector<Obstacle>> obstacles_;
};

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

ScriptLinearLayers find_linear_layers(const torch::jit::Module& module) { return LayerSearch(module).result(); }

bool is_product(const Node& node, const Value& self) {
  return node.kind() == aten::linear && is_attribute(*node.input(1), self, kWeight) &&
         (node.input(2)->type()->kind() == c10::TypeKind::NoneType || is_attribute(*node.input(2), self, "bias"));
}

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
