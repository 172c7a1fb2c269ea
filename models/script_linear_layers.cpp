#include "models/script_module.h"

#include <torch/csrc/jit/api/function_impl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

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

}  // namespace

ScriptLinearLayers find_linear_layers(const torch::jit::Module& module) { return LayerSearch(module).result(); }

bool is_product(const Node& node, const Value& self) {
  return node.kind() == aten::linear && is_attribute(*node.input(1), self, kWeight) &&
         (node.input(2)->type()->kind() == c10::TypeKind::NoneType || is_attribute(*node.input(2), self, "bias"));
}

}  // namespace narrowcast::models::conversion
