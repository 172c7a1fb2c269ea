#include "python/classes/dictionaries.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace narrowcast::classes {
namespace {

hooks::OptionValue to_option(const std::string& name, const c10::IValue& value) {
  if (value.isNone()) return std::monostate();
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  TORCH_CHECK_TYPE(value.isString(), name, ": must be a bool, int, float or str, but is ", value.tagKind());
  return value.toStringRef();
}

}  // namespace

void for_each_option(const OptionDict& options,
                     const std::function<void(const std::string& name, const hooks::OptionValue& value)>& set) {
  for (const auto& option : options) {
    const hooks::OptionValue value = to_option(option.key(), option.value());
    TORCH_CHECK_VALUE(option.key() != kWrongValue, hooks::text_of(value));
    TORCH_CHECK_TYPE(option.key() != kWrongType, hooks::text_of(value));
    set(option.key(), value);
  }
}

void check_known(const std::string& name, const std::vector<hooks::NamedOption>& options,
                 const std::vector<std::string>& own) {
  std::vector<std::string> known;
  for (const hooks::NamedOption& option : options) known.push_back(option.name);
  known.insert(known.end(), own.begin(), own.end());
  TORCH_CHECK_VALUE(std::ranges::find(known, name) != known.end(), "unknown option '", name,
                    "'; known: ", c10::Join(", ", known));
}

StateDict to_dict(const hooks::HookState& state) {
  StateDict dict;
  for (const auto& [name, tensor] : state) dict.insert(name, tensor.clone());
  return dict;
}

hooks::HookState from_dict(const StateDict& dict) {
  hooks::HookState state;
  for (const auto& entry : dict) state.emplace(entry.key(), entry.value());
  return state;
}

std::vector<hooks::NamedParameter> named(const std::vector<std::string>& names,
                                         const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(names.size() == tensors.size(), "names: there are ", names.size(), " for ", tensors.size(),
                    " parameters");
  std::vector<hooks::NamedParameter> parameters;
  for (size_t i = 0; i < names.size(); ++i) parameters.push_back({names[i], tensors[i]});
  return parameters;
}

}  // namespace narrowcast::classes
