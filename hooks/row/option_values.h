// Reads option values (OptionValue) into members.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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
