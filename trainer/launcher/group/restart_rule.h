// Decides whether workers are started again after a failure.
//
// A failure that would occur again is not worth a restart. There are two such cases:
//   - the worker's error file marks it as final (program/failure.h), as narrowcast-train does for a wrong flag;
//   - exit code 2 twice in a row with the same error, for programs that write no such mark.
// If the job had failed in another way before, that earlier failure is reported.
#pragma once

#include <cstdint>
#include <optional>

#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

class RestartRule {
 public:
  explicit RestartRule(int64_t max_restarts) : max_restarts_(max_restarts) {}

  // Records a failure that ended a round; `end.cause` is kFailed. Returns whether another round may begin, which then
  // counts as a restart. Otherwise it completes `end` with the reason and the failure before.
  bool allows(GroupEnd& end);

 private:
  const int64_t max_restarts_;
  int64_t restarts_ = 0;
  std::optional<FailureRecord> last_;   // the last failure
  std::optional<FailureRecord> cause_;  // the last failure that a restart might repair
};

}  // namespace narrowcast::launcher
