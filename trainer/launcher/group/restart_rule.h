// Decides whether workers are started again after a failure: all of them in another round, or one of them in place.
//
// A failure that would occur again is not worth a restart. There are two such cases:
//   - the worker's error file marks it as final (program/failure.h), as narrowcast-train does for a wrong flag;
//   - exit code 2 twice in a row with the same error, for programs that write no such mark. In place, the second one
//     must follow within kRepetition: a process that worked for longer, e.g. until memory was short, may do so again.
// If the job had failed in another way before, that earlier failure is reported.
//
// Several ranks may fail for one cause: the same error on all of them, or a rank that cannot recover from the death of
// another. In place, failures of different ranks soon after each other therefore count as one. A rank that fails twice
// counts twice.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

class RestartRule {
 public:
  // Restarts in place count for this time.
  static constexpr std::chrono::hours kWindow{1};
  // Restarts in place of different ranks within this time count as one.
  static constexpr std::chrono::seconds kTogether{10};
  // In place, a rank's failure repeats its last one within this time.
  static constexpr std::chrono::minutes kRepetition{1};

  // The rule for rounds: `max_restarts` in the whole job.
  static RestartRule for_rounds(int64_t max_restarts) { return {max_restarts, std::nullopt}; }
  // The rule for the processes of one node that take another's place: `max_restarts` within kWindow. A failure is
  // compared with the last one of the same rank.
  static RestartRule in_place(int64_t max_restarts) { return {max_restarts, kWindow}; }

  // Records a failure at time `now`; `end.cause` is kFailed. Returns whether the workers, or in place the one that
  // failed, may be started again. That then counts as a restart. Otherwise it completes `end` with the reason and the
  // failure before, and marks the failure as final if it would occur again. The rule for rounds ignores `now`.
  bool allows(GroupEnd& end, Clock::time_point now = {});

  // Number of restarts that count.
  int64_t restarts() const { return std::ssize(restarts_); }

 private:
  RestartRule(int64_t max_restarts, std::optional<Clock::duration> window)
      : max_restarts_(max_restarts), window_(window) {}

  struct Last {
    FailureRecord failure;
    Clock::time_point time;
  };

  void forget_before(Clock::time_point now);
  bool comes_again(const FailureRecord& failure, Clock::time_point now);
  bool has_counted(int64_t rank, Clock::time_point now);

  int64_t max_restarts_;
  std::optional<Clock::duration> window_;
  std::set<int64_t> together_;               // ranks that the last restart in place stands for
  std::deque<Clock::time_point> restarts_;   // times of restarts that count, oldest first
  std::map<int64_t, Last> last_;             // the last failure; in place, by rank
  std::optional<FailureRecord> cause_ = {};  // the last failure that a restart might repair
};

}  // namespace narrowcast::launcher
