#include "models/imported/script_state.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <memory>

namespace narrowcast::models {
namespace {

using torch::jit::Block;
using torch::jit::Function;
using torch::jit::Node;

// The methods and the hooks around forward.
std::vector<Function*> functions_of(const c10::ClassType& type) {
  std::vector<Function*> functions = type.methods();
  for (const auto& hooks : {type.getForwardHooks(), type.getForwardPreHooks()}) {
    functions.insert(functions.end(), hooks.begin(), hooks.end());
  }
  return functions;
}

// The attribute's tensor. If it is expanded (several elements share one place in memory), it cannot be written: then
// the script gets a contiguous copy.
at::Tensor writable_tensor(const torch::jit::Module& script, const std::string& attribute) {
  const at::Tensor tensor = script.attr(attribute).toTensor();
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) {
    return tensor;
  }
  const at::Tensor copy = tensor.detach().contiguous();
  script._ivalue()->setSlot(script.type()->getAttributeSlot(attribute), copy);
  return copy;
}

bool becomes_other_numbers(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() != to.scalar_type() && !(from.is_floating_point() && to.is_floating_point());
}

constexpr at::ScalarType kSavedDtypes[] = {at::kFloat,       at::kDouble,        at::kHalf,         at::kBFloat16,
                                           at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kComplexFloat, at::kBool,
                                           at::kByte,        at::kChar,          at::kUInt16,       at::kShort,
                                           at::kUInt32,      at::kInt,           at::kUInt64,       at::kLong};

}  // namespace

bool can_be_saved(at::ScalarType dtype) { return std::ranges::find(kSavedDtypes, dtype) != std::end(kSavedDtypes); }

ScriptState::ScriptState(const torch::jit::Module& script, torch::nn::Module& module, const std::string& name)
    : name_(name) {
  for (const torch::jit::Module& part : script.modules()) {
    for (Function* const function : functions_of(*part.type())) {
      function->ensure_defined();
      find_assigned(*torch::jit::toGraphFunction(*function).graph()->block());
    }
  }
  register_tensors(module, script, "");
}

// A fork's code is a separate graph.
void ScriptState::find_assigned(const Block& block) {
  for (const Node* const node : block.nodes()) {
    if (node->kind() == c10::prim::SetAttr) {
      if (const auto type = node->input(0)->type()->cast<c10::ClassType>()) {
        assigned_.emplace(type.get(), node->s(c10::attr::name));
      }
    }
    for (const Block* const inner : node->blocks()) {
      find_assigned(*inner);
    }
    if (node->hasAttribute(c10::attr::Subgraph)) {
      find_assigned(*node->g(c10::attr::Subgraph)->block());
    }
  }
}

bool ScriptState::is_new(const at::Tensor& tensor, const std::string& name) {
  const auto [known, inserted] = names_.emplace(tensor.unsafeGetTensorImpl(), name);
  if (!inserted) {
    aliases_.emplace(name, known->second);
  }
  return inserted;
}

// A module that has several names is visited several times; later visits find the copy.
at::Tensor ScriptState::own_tensor(const torch::jit::Module& script, const std::string& attribute,
                                   const std::string& name) {
  const at::Tensor tensor = script.attr(attribute).toTensor();
  for (const AssignedBuffer& buffer : buffers_) {
    if (buffer.registered.is_same(tensor)) {
      return tensor;
    }
  }
  buffers_.push_back({.object = script._ivalue(),
                      .slot = script.type()->getAttributeSlot(attribute),
                      .name = name,
                      .registered = tensor.detach().clone()});
  script._ivalue()->setSlot(buffers_.back().slot, buffers_.back().registered);
  return buffers_.back().registered;
}

void ScriptState::check_can_be_saved(const char* kind, const std::string& name, const at::Tensor& tensor) const {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, name_, ": ", kind, " '", name, "' has the layout ",
                    tensor.layout(), ", but only dense tensors can be saved and sent to other ranks");
  TORCH_CHECK_VALUE(can_be_saved(tensor.scalar_type()), name_, ": ", kind, " '", name, "' is ", tensor.scalar_type(),
                    ", which model files (safetensors) cannot hold");
}

void ScriptState::register_tensors(torch::nn::Module& module, const torch::jit::Module& script,
                                   const std::string& prefix) {
  const auto is_assigned = [&](const std::string& attribute) {
    return assigned_.contains({script.type().get(), attribute});
  };
  for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
    const std::string name = prefix + parameter.name;
    TORCH_CHECK_VALUE(!is_assigned(parameter.name), name_, ": its code assigns to the parameter '", name,
                      "', which would then no longer be trained; change it in place, or make it a buffer");
    if (!parameter.value.defined()) continue;
    check_can_be_saved("parameter", name, parameter.value);
    if (is_new(parameter.value, name)) {
      module.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
    }
  }
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) {
    if (!buffer.value.defined()) continue;
    const std::string name = prefix + buffer.name;
    check_can_be_saved("buffer", name, buffer.value);
    const at::Tensor tensor =
        is_assigned(buffer.name) ? own_tensor(script, buffer.name, name) : writable_tensor(script, buffer.name);
    if (is_new(tensor, name)) {
      module.register_buffer(buffer.name, tensor);
    }
  }
  for (const auto& child : script.named_children()) {
    const auto holder = std::make_shared<torch::nn::Module>(child.name);
    register_tensors(*holder, child.value, prefix + child.name + ".");
    module.register_module(child.name, holder);
  }
}

ScriptState::Pass::Pass(const ScriptState& state) : state_(state) {
  for (const AssignedBuffer& buffer : state_.buffers_) {
    buffer.object->setSlot(buffer.slot, buffer.registered.detach().clone());
  }
}

ScriptState::Pass::~Pass() {
  for (const AssignedBuffer& buffer : state_.buffers_) {
    buffer.object->setSlot(buffer.slot, buffer.registered);
  }
}

void ScriptState::Pass::keep() const {
  for (const AssignedBuffer& buffer : state_.buffers_) {
    const at::Tensor left = buffer.object->getSlot(buffer.slot).toTensor();
    const at::Tensor& registered = buffer.registered;
    TORCH_CHECK_VALUE(left.sizes() == registered.sizes() && !becomes_other_numbers(left, registered), state_.name_,
                      ": its code changes the buffer '", buffer.name, "' to ", left.scalar_type(), " ", left.sizes(),
                      ", but the buffer that is saved and sent to other ranks is ", registered.scalar_type(), " ",
                      registered.sizes());
  }
  const at::NoGradGuard no_grad;
  for (const AssignedBuffer& buffer : state_.buffers_) {
    at::Tensor(buffer.registered).copy_(buffer.object->getSlot(buffer.slot).toTensor());
  }
}

}  // namespace narrowcast::models
