// Members as option values (OptionValue), and back.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>

namespace NARROWCAST_EXPORT narrowcast {
namespace hooks {

// c10::TypeError "NAME: must be EXPECTED, but is TYPE VALUE".
[[noreturn]] void refuse_type(const std::string& name, const char* expected, const OptionValue& value);

// Each function sets the member, or throws c10::TypeError naming the option. A double may be given as an integer.
void read_option(const std::string& name, const OptionValue& value, bool& member);
void read_option(const std::string& name, const OptionValue& value, int64_t& member);
void read_option(const std::string& name, const OptionValue& value, double& member);
void read_option(const std::string& name, const OptionValue& value, std::string& member);

// An enumerator, read from its name by `parse`, whose c10::ValueError gets the option's name if it lacks it.
template <class T>
void read_option(const std::string& name, const OptionValue& value, T& member, T (*parse)(std::string_view)) {
  std::string text;
  read_option(name, value, text);
  try {
    member = parse(text);
  } catch (const c10::ValueError& error) {
    const std::string reason = error.what_without_backtrace();
    TORCH_CHECK_VALUE(false, reason.starts_with(name + ":") ? "" : name + ": ", reason);
  }
}

template <class T, class... Parse>
void read_option(const std::string& name, const OptionValue& value, std::optional<T>& member, Parse... parse) {
  T read{};
  read_option(name, value, read, parse...);
  member = std::move(read);
}

}  // namespace hooks
}  // namespace narrowcast

namespace narrowcast::hooks {

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

// The value of a member; no value for an empty optional, and the name of an enumerator.
template <class T>
OptionValue value_of(const T& member) {
  if constexpr (kIsOptional<T>) {
    return member ? value_of(*member) : OptionValue();
  } else if constexpr (std::is_constructible_v<std::string, T>) {
    return std::string(member);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return member;
  } else {
    return std::string(to_string(member));
  }
}

// No value sets the member to its default, `usual`; any other value is read by `read`.
template <class T, class Read>
void set_member(const OptionValue& value, T& member, const T& usual, const Read& read) {
  if (std::holds_alternative<std::monostate>(value)) {
    member = usual;
  } else {
    read(member);
  }
}

}  // namespace narrowcast::hooks
