// A value of the environment or the command line that remembers where it is from, so that errors can say so.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include <narrowcast/worker_env.h>

namespace narrowcast {

struct Setting {
  std::string name;  // "RANK", or "--rank"
  std::string text;

  // For errors: "RANK=3".
  std::string described() const { return name + "=" + text; }
};

// The variable, unless it is not set. One that is set to nothing counts as not set, as in most shells' scripts.
std::optional<Setting> find_variable(const EnvironmentVariables& variables, const std::string& name);

struct Range {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int32_t>::max();
};

// Throws c10::ValueError naming the setting and its value if it is no integer or out of range.
int64_t parse_integer(const Setting& setting, Range range);

}  // namespace narrowcast
