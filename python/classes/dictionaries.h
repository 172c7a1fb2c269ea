// How the classes take what TorchScript and Python give: options and tensors in dictionaries, groups by name.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>

namespace narrowcast::classes {

using OptionDict = c10::Dict<std::string, c10::IValue>;
using StateDict = c10::Dict<std::string, at::Tensor>;

// Entries of options in whose place Python found an error: its text, which all ranks then throw as c10::ValueError or
// c10::TypeError. python/narrowcast/_options.py makes them.
inline constexpr const char* kWrongValue = "wrong value";
inline constexpr const char* kWrongType = "wrong type";

// Calls set(name, value) for each option. None is no value (std::monostate), which stands for the default.
// c10::TypeError naming the option for a value that is not None, a bool, an int, a float or a str, and the errors
// above.
void for_each_option(const OptionDict& options,
                     const std::function<void(const std::string& name, const hooks::OptionValue& value)>& set);

// c10::ValueError "unknown option 'NAME'; known: ...", unless `name` is among the options or the class's own ones.
void check_known(const std::string& name, const std::vector<hooks::NamedOption>& options,
                 const std::vector<std::string>& own);

// A copy of each tensor, which later steps do not change.
StateDict to_dict(const hooks::HookState& state);

hooks::HookState from_dict(const StateDict& dict);

// c10::ValueError if there are not as many names as tensors.
std::vector<hooks::NamedParameter> named(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors);

}  // namespace narrowcast::classes
