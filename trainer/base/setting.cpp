#include "trainer/base/setting.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <utility>

namespace narrowcast {
namespace {

// The whole of `text`, white space around it aside, as a number in decimal.
std::optional<int64_t> integer_in(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) {
    return std::nullopt;
  }
  text = text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
  if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<Setting> find_variable(const EnvironmentVariables& variables, const std::string& name) {
  std::string text = text_or_empty(variables, name);
  return text.empty() ? std::nullopt : std::optional(Setting{name, std::move(text)});
}

int64_t parse_integer(const Setting& setting, Range range) {
  const std::optional<int64_t> value = integer_in(setting.text);
  TORCH_CHECK_VALUE(value.has_value(), setting.name, "='", setting.text, "' is not an integer");
  TORCH_CHECK_VALUE(*value >= range.least && *value <= range.most, setting.described(), " is not between ", range.least,
                    " and ", range.most);
  return *value;
}

}  // namespace narrowcast
