// The prefix of each shown line of a worker's output, from a template like torchrun's.
#pragma once

#include <string>

namespace narrowcast::launcher {

inline constexpr const char* kDefaultLinePrefix = "[${rank}]: ";

// The variables of a template.
struct LineVariables {
  std::string role_name = {};
  std::string rank = {};
  std::string local_rank = {};
  std::string hostname = {};
};

// Returns `text` with "$NAME" and "${NAME}" replaced by the variable NAME, and "$$" by "$". Throws c10::ValueError for
// an unknown NAME, a "$" before anything else, and several lines. The message names `flag`, `text` and, except for
// several lines, the variables.
std::string expand_line_prefix(const std::string& flag, const std::string& text, const LineVariables& variables);

}  // namespace narrowcast::launcher
