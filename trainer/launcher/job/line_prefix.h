// The text before each line of a worker's output that is shown, as torchrun's templates have it.
#pragma once

#include <string>

namespace narrowcast::launcher {

inline constexpr const char* kDefaultLinePrefix = "[${rank}]: ";

// What a template may name.
struct LineVariables {
  std::string role_name = {};
  std::string rank = {};
  std::string local_rank = {};
  std::string hostname = {};
};

// `text` with "$NAME" and "${NAME}" replaced by the variable of that name, and "$$" by "$". Throws c10::ValueError
// naming `flag`, `text` and the variables for another NAME, for a "$" before anything else, and for more than one line.
std::string expand_line_prefix(const std::string& flag, const std::string& text, const LineVariables& variables);

}  // namespace narrowcast::launcher
