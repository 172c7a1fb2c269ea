#include "trainer/launcher/group/restart_rule.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <string>
#include <utility>

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

// Restarts that are long past do not explain a failure.
void RestartRule::forget_before(Clock::time_point now) {
  while (window_ && !restarts_.empty() && now - restarts_.front() >= *window_) {
    restarts_.pop_front();
  }
  if (window_ && restarts_.empty()) {
    cause_.reset();
  }
}

// Returns whether the last restart stands for this rank's, too.
bool RestartRule::has_counted(int64_t rank, Clock::time_point now) {
  return window_ && !restarts_.empty() && now - restarts_.back() < kTogether && together_.insert(rank).second;
}

// Returns whether the failure repeats the last one, and replaces that.
bool RestartRule::comes_again(const FailureRecord& failure, Clock::time_point now) {
  const auto [found, is_first] = last_.try_emplace(window_ ? failure.rank : 0, failure, now);
  const Last last = std::exchange(found->second, {failure, now});
  const bool is_long_past = window_ && now - last.time > kRepetition;
  return !is_first && !is_long_past && is_wrong_use(last.failure) && is_wrong_use(failure) &&
         are_alike(last.failure, failure);
}

bool RestartRule::allows(GroupEnd& end, Clock::time_point now) {
  forget_before(now);
  FailureRecord& failure = *end.failure;
  failure.is_final = comes_again(failure, now) || failure.is_final;
  if (!failure.is_final && !is_wrong_use(failure)) {
    cause_ = failure;
  }
  if (!failure.is_final && has_counted(failure.rank, now)) {
    return true;
  }
  if (!failure.is_final && restarts() < max_restarts_) {
    restarts_.push_back(now);
    together_ = {failure.rank};
    return true;
  }
  if (failure.is_final) {
    end.before = end.before ? end.before : cause_;
    end.text = restarts() < max_restarts_ ? "not restarted, because it would fail in the same way" : "";
  }
  return false;
}

}  // namespace narrowcast::launcher
