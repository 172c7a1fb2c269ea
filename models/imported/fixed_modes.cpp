#include "models/imported/fixed_modes.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace narrowcast::models {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::toIValue;
using torch::jit::Value;

// The operator's argument of that name; null if it has no such argument.
const Value* argument(const Node& node, std::string_view name) {
  const c10::FunctionSchema* const schema = node.maybeSchema();
  if (schema == nullptr) {
    return nullptr;
  }
  for (size_t i = 0; i < schema->arguments().size() && i < node.inputs().size(); ++i) {
    if (schema->arguments()[i].name() == name) return node.input(i);
  }
  return nullptr;
}

// The value of the argument of that name, if it is a constant.
std::optional<c10::IValue> constant(const Node& node, std::string_view name) {
  const Value* const value = argument(node, name);
  return value == nullptr ? std::nullopt : toIValue(value);
}

std::optional<bool> constant_flag(const Node& node, std::string_view name) {
  const std::optional<c10::IValue> value = constant(node, name);
  return value.has_value() && value->isBool() ? std::optional(value->toBool()) : std::nullopt;
}

bool is_zero(const Node& node, std::string_view name) {
  const std::optional<c10::IValue> value = constant(node, name);
  return value.has_value() && value->isDouble() && value->toDouble() == 0;
}

// A norm without running averages uses the batch's averages in both modes.
bool has_running_averages(const Node& node) {
  const std::optional<c10::IValue> mean = constant(node, "running_mean");
  return argument(node, "running_mean") != nullptr && !(mean.has_value() && mean->isNone());
}

// The mode in which the operator always computes; std::nullopt if it follows the module's mode or computes the same in
// both.
std::optional<bool> fixed_mode(const Node& node) {
  if (!node.kind().is_aten()) {
    return std::nullopt;
  }
  if (argument(node, "dropout_p") != nullptr) {  // attention, which drops wherever this is not 0
    const std::optional<c10::IValue> share = constant(node, "dropout_p");
    return share.has_value() && !is_zero(node, "dropout_p") ? std::optional(true) : std::nullopt;
  }
  if (const std::optional<bool> mode = constant_flag(node, "use_input_stats")) {
    return has_running_averages(node) ? mode : std::nullopt;
  }
  if (const std::optional<bool> mode = constant_flag(node, "training")) {
    const bool is_norm = argument(node, "running_mean") != nullptr;
    return !is_norm || has_running_averages(node) ? mode : std::nullopt;
  }
  const bool drops = !is_zero(node, "p") && !is_zero(node, "dropout");  // the shares of dropout and of a recurrent
                                                                        // network
  return drops ? constant_flag(node, "train") : std::nullopt;
}

// Operators of one kind and mode.
struct Found {
  int64_t count = 0;
  std::string first;  // the submodule's name
};
using FoundByMode = std::map<std::pair<std::string, bool>, Found>;

void find_fixed(const Block& block, const std::string& module, FoundByMode& found) {
  for (const Node* const node : block.nodes()) {
    if (const std::optional<bool> mode = fixed_mode(*node)) {
      Found& entry = found[{node->kind().toQualString(), *mode}];
      if (entry.count++ == 0) entry.first = module;
    }
    for (const Block* const inner : node->blocks()) {
      find_fixed(*inner, module, found);
    }
  }
}

}  // namespace

std::string describe_fixed_modes(const torch::jit::Module& module) {
  FoundByMode found;
  for (const auto& part : module.named_modules()) {
    for (torch::jit::Function* const method : part.value.type()->methods()) {
      method->ensure_defined();
      find_fixed(*torch::jit::toGraphFunction(*method).graph()->block(), part.name, found);
    }
  }
  std::vector<std::string> texts;
  for (const auto& [what, where] : found) {
    const std::string times = where.count > 1 ? c10::str(where.count, " times, first") : std::string("once,");
    const std::string place = where.first.empty() ? std::string("the module itself") : "'" + where.first + "'";
    texts.push_back(
        c10::str(what.first, " in ", what.second ? "training" : "evaluation", " mode (", times, " in ", place, ")"));
  }
  return c10::Join("; ", texts);
}

}  // namespace narrowcast::models
