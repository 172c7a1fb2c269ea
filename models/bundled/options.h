// Conversion of model options between names and a struct. One table per model lists each option's name, field and
// range, and is used for reading, checking and writing.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/model.h>

namespace narrowcast::models {

// One integer option: options.*field must be in least..most.
template <class Options>
struct IntegerOption {
  std::string_view name;
  int64_t Options::*field;
  int64_t least;
  int64_t most;
};

// The names in the table, in its order.
template <class Options>
std::vector<std::string> option_names(std::span<const IntegerOption<Options>> table) {
  std::vector<std::string> names;
  for (const auto& option : table) {
    names.emplace_back(option.name);
  }
  return names;
}

// Throws a c10::ValueError that names the model, the option and the value if a value is out of its range.
template <class Options>
void check_options(std::string_view model, std::span<const IntegerOption<Options>> table, const Options& options) {
  for (const auto& option : table) {
    const int64_t value = options.*(option.field);
    TORCH_CHECK_VALUE(value >= option.least && value <= option.most, model, ": option ", option.name, " must be in ",
                      option.least, "..", option.most, ", but is ", value);
  }
}

// An option that is not given keeps the struct's default. Throws a c10::ValueError that names the model and the option
// for an unknown name or a value that is out of range.
template <class Options>
Options read_options(std::string_view model, std::span<const IntegerOption<Options>> table,
                     const ModelOptions& values) {
  Options options;
  for (const auto& [name, value] : values) {
    const auto option = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.name == name; });
    TORCH_CHECK_VALUE(option != table.end(), model, ": unknown option '", name,
                      "'; known: ", table.empty() ? "none" : c10::Join(", ", option_names(table)));
    options.*(option->field) = value;
  }
  check_options(model, table, options);
  return options;
}

// Every option with its value, in the form that read_options accepts.
template <class Options>
ModelOptions write_options(std::span<const IntegerOption<Options>> table, const Options& options) {
  ModelOptions values;
  for (const auto& option : table) {
    values[std::string(option.name)] = options.*(option.field);
  }
  return values;
}

}  // namespace narrowcast::models
