// The variable that a flag sets, of any type: how to set it from a text, and its value.
#pragma once

#include <absl/flags/marshalling.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/base/program/path_list.h"

namespace narrowcast::program {

// A handle on a variable, which must outlive it.
struct Variable {
  std::string type;       // one word for users: "yes/no", "integer", "number", "text", "list", "duration" or "value"
  std::string text = {};  // the value when the handle was made, as in a command line; empty: no value

  // Sets the variable. Returns false for a text that is not a value of its type, and may then set `reason`. A parser of
  // names throws c10::ValueError instead.
  std::function<bool(const std::string& text, std::string& reason)> set = nullptr;

  // The variable's value; null for an optional without a value.
  std::function<nlohmann::json()> value = nullptr;
};

// The types whose texts Abseil reads and writes.
template <class T>
concept PlainType =
    std::same_as<T, bool> || std::same_as<T, int64_t> || std::same_as<T, double> || std::same_as<T, std::string>;

template <PlainType T>
constexpr const char* type_name() {
  if constexpr (std::same_as<T, bool>) {
    return "yes/no";
  } else if constexpr (std::same_as<T, int64_t>) {
    return "integer";
  } else if constexpr (std::same_as<T, double>) {
    return "number";
  } else {
    return "text";
  }
}

// Abseil's parser may change its target even if it fails.
template <PlainType T>
std::optional<T> parsed(const std::string& text, std::string& reason) {
  T value = {};
  return absl::ParseFlag(text, &value, &reason) ? std::optional<T>(std::move(value)) : std::nullopt;
}

template <PlainType T>
Variable variable(T& target) {
  return {.type = type_name<T>(),
          .text = absl::UnparseFlag(target),
          .set =
              [&target](const std::string& text, std::string& reason) {
                const std::optional<T> value = parsed<T>(text, reason);
                if (value) target = *value;
                return value.has_value();
              },
          .value = [&target] { return nlohmann::json(target); }};
}

template <PlainType T>
Variable variable(std::optional<T>& target) {
  return {.type = type_name<T>(),
          .text = target ? absl::UnparseFlag(*target) : "",
          .set =
              [&target](const std::string& text, std::string& reason) {
                const std::optional<T> value = parsed<T>(text, reason);
                if (value) target = *value;
                return value.has_value();
              },
          .value = [&target] { return target ? nlohmann::json(*target) : nlohmann::json(); }};
}

// An optional. In a command line, 0 means no value.
template <PlainType T>
Variable variable_or_zero(std::optional<T>& target) {
  Variable made = variable(target);
  made.text = absl::UnparseFlag(target.value_or(0));
  made.set = [&target, set = made.set](const std::string& text, std::string& reason) {
    const bool good = set(text, reason);
    if (good && target == T{0}) target.reset();
    return good;
  };
  return made;
}

// An enum that to_string prints. `parse` is the inverse, and throws for an unknown name.
template <class Enum, class Parse>
requires std::is_enum_v<Enum> Variable variable(Enum& target, Parse parse) {
  const auto text = [&target] { return std::string(to_string(target)); };
  return {.type = "text",
          .text = text(),
          .set =
              [&target, parse](const std::string& name, std::string& /*reason*/) {
                target = parse(name);
                return true;
              },
          .value = [text] { return nlohmann::json(text()); }};
}

template <class Enum, class Parse>
requires std::is_enum_v<Enum> Variable variable(std::optional<Enum>& target, Parse parse) {
  const auto text = [&target] { return target ? std::string(to_string(*target)) : std::string(); };
  return {.type = "text",
          .text = text(),
          .set =
              [&target, parse](const std::string& name, std::string& /*reason*/) {
                target = parse(name);
                return true;
              },
          .value = [&target, text] { return target ? nlohmann::json(text()) : nlohmann::json(); }};
}

// Paths, in the syntax of PathList.
Variable variable(std::vector<std::string>& target);

// Whole seconds.
Variable variable(std::chrono::milliseconds& target);

// The value of a key. The map has no such key until the variable is set.
Variable variable(std::map<std::string, int64_t>& target, const std::string& key);

}  // namespace narrowcast::program
