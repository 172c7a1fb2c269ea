#include "trainer/launcher/group/restart_rule.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <string>

#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

bool is_wrong_use(const FailureRecord& failure) {
  return failure.ending.signal == 0 && failure.ending.exit_code == program::kWrongUse;
}

// The error without digits, because times, process ids and ranks differ.
std::string words_of(const FailureRecord& failure) {
  std::string text = failure.message + "\n" + absl::StrJoin(failure.last_lines, "\n");
  std::erase_if(text, absl::ascii_isdigit);
  return text;
}

bool are_alike(const FailureRecord& one, const FailureRecord& other) { return words_of(one) == words_of(other); }

}  // namespace

bool RestartRule::allows(GroupEnd& end) {
  const FailureRecord& failure = *end.failure;
  const bool comes_again = last_ && is_wrong_use(*last_) && is_wrong_use(failure) && are_alike(*last_, failure);
  const bool is_final = failure.is_final || comes_again;
  last_ = failure;
  if (!is_final && !is_wrong_use(failure)) {
    cause_ = failure;
  }
  if (!is_final && restarts_ < max_restarts_) {
    ++restarts_;
    return true;
  }
  if (is_final) {
    end.before = cause_;
    end.text = restarts_ < max_restarts_ ? "not restarted, because it would fail in the same way" : "";
  }
  return false;
}

}  // namespace narrowcast::launcher
