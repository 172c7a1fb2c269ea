// The names of an enum's values, listed once for printing, for parsing, and for the errors of both.
#pragma once

#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace narrowcast {

// The values of one option. Errors are c10::ValueErrors.
template <class Enum, size_t count>
struct EnumeratorNames {
  const char* option;  // Name of the option, as users know it.
  const char* type;    // Name of the enum.
  std::array<std::pair<Enum, std::string_view>, count> names;

  // Throws "OPTION: 7 is not a valid TYPE" for a number that has no name.
  std::string_view name_of(Enum value) const {
    for (const auto& [known, name] : names) {
      if (value == known) return name;
    }
    TORCH_CHECK_VALUE(false, option, ": ", static_cast<int>(value), " is not a valid ", type);
  }

  // std::nullopt for an unknown name.
  std::optional<Enum> find(std::string_view name) const {
    for (const auto& [value, known] : names) {
      if (name == known) return value;
    }
    return std::nullopt;
  }

  // Throws "OPTION: must be a, b or c, but is 'NAME'" for an unknown name.
  Enum parse(std::string_view name) const {
    const std::optional<Enum> found = find(name);
    TORCH_CHECK_VALUE(found, option, ": must be ", joined(" or "), ", but is '", name, "'");
    return *found;
  }

  // The same with another message: "OPTION: unknown name 'NAME'; known: a, b, c".
  Enum parse_known(std::string_view name) const {
    const std::optional<Enum> found = find(name);
    TORCH_CHECK_VALUE(found, option, ": unknown name '", name, "'; known: ", joined(", "));
    return *found;
  }

  // All names in order, separated by commas; `before_last` stands before the last one instead.
  std::string joined(std::string_view before_last) const {
    std::string text;
    for (size_t i = 0; i < count; ++i) {
      text.append(i == 0 ? "" : i + 1 == count ? before_last : ", ").append(names[i].second);
    }
    return text;
  }
};

}  // namespace narrowcast
