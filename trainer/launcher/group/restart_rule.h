// Whether workers that failed are started again.
//
// A failure that would come again is not worth a restart: one of which the worker's error file says so
// (program/failure.h), as narrowcast-train's does for a wrong flag, and, for programs that say nothing, exit code 2
// twice in a row with the same error. Where the job had failed in another way before, that failure is the one to
// report.
#pragma once

#include <cstdint>
#include <optional>

#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

class RestartRule {
 public:
  explicit RestartRule(int64_t max_restarts) : max_restarts_(max_restarts) {}

  // Takes note of a failure that ended a round, `end.cause` being kFailed. Returns whether another round may begin; it
  // counts as a restart then. If not, `end` is completed: why there is no restart, and which failure was before.
  bool allows(GroupEnd& end);

 private:
  const int64_t max_restarts_;
  int64_t restarts_ = 0;
  std::optional<FailureRecord> last_;   // failure,
  std::optional<FailureRecord> cause_;  // and the last one that a restart might mend
};

}  // namespace narrowcast::launcher
