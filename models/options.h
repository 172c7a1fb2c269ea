// Model options between JSON and a struct: one table per model names each
// option, its field and its range, and serves reading, checking and writing.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::models {

// One integer option: options.*field, which must lie in least..most.
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

// One line of JSON for messages; never throws.
inline std::string to_one_line(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The value as int64. Throws c10::ValueError naming the model and the option otherwise.
inline int64_t integer_option(std::string_view model, std::string_view name, const nlohmann::json& value) {
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  TORCH_CHECK_VALUE(value.is_number_integer() && !too_large, model, ": option ", name, " must be an integer, but is ",
                    to_one_line(value));
  return value.get<int64_t>();
}

// Throws c10::ValueError, naming the model, the option and the value, if one is out of its range.
template <class Options>
void check_options(std::string_view model, std::span<const IntegerOption<Options>> table, const Options& options) {
  for (const auto& option : table) {
    const int64_t value = options.*(option.field);
    TORCH_CHECK_VALUE(value >= option.least && value <= option.most, model, ": option ", option.name, " must be in ",
                      option.least, "..", option.most, ", but is ", value);
  }
}

// Options from a JSON object; a missing key keeps the struct's default. Throws c10::ValueError,
// naming the model and the option, for an unknown key, a value that is no integer or is out of range.
template <class Options>
Options read_options(std::string_view model, std::span<const IntegerOption<Options>> table,
                     const nlohmann::json& values) {
  TORCH_CHECK_VALUE(values.is_object(), model, ": options must be a JSON object, but are ", to_one_line(values));
  Options options;
  for (const auto& [name, value] : values.items()) {
    const auto option = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.name == name; });
    TORCH_CHECK_VALUE(option != table.end(), model, ": unknown option '", name,
                      "'; known: ", table.empty() ? "none" : c10::Join(", ", option_names(table)));
    options.*(option->field) = integer_option(model, name, value);
  }
  check_options(model, table, options);
  return options;
}

// Every option with its value, as read_options takes them.
template <class Options>
nlohmann::json write_options(std::span<const IntegerOption<Options>> table, const Options& options) {
  nlohmann::json values = nlohmann::json::object();
  for (const auto& option : table) {
    values[std::string(option.name)] = options.*(option.field);
  }
  return values;
}

}  // namespace narrowcast::models
