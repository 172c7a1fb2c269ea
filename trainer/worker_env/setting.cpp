#include "trainer/worker_env/setting.h"

#include <absl/strings/numbers.h>
#include <c10/util/Exception.h>

#include <utility>

namespace narrowcast {

std::optional<Setting> find_variable(const EnvironmentVariables& variables, const std::string& name) {
  std::string text = text_or_empty(variables, name);
  return text.empty() ? std::nullopt : std::optional(Setting{name, std::move(text)});
}

int64_t parse_integer(const Setting& setting, Range range) {
  int64_t value = 0;
  TORCH_CHECK_VALUE(absl::SimpleAtoi(setting.text, &value), setting.name, "='", setting.text, "' is not an integer");
  TORCH_CHECK_VALUE(value >= range.least && value <= range.most, setting.described(), " is not between ", range.least,
                    " and ", range.most);
  return value;
}

}  // namespace narrowcast
