#include "trainer/launcher/local_rendezvous.h"

#include "trainer/base/program/exit_code.h"

namespace narrowcast::launcher {

LocalRendezvous::LocalRendezvous(Round first, std::function<void()> before_round,
                                 std::function<void(int64_t)> succeeded)
    : round_(std::move(first)), before_round_(std::move(before_round)), succeeded_(std::move(succeeded)) {
  before_round_();
}

Directive LocalRendezvous::directive() {
  return {.kind = over_ ? Directive::Kind::kOver : Directive::Kind::kRun, .round = round_, .end = end_};
}

void LocalRendezvous::report(const NodeReport& report) {
  end_ = end_of_report(report);
  const bool may_restart = report.end == NodeReport::End::kFailed && report.signal == 0 && !report.left_behind;
  over_ = !may_restart || round_.restart_count == round_.max_restarts;
  if (!over_) {
    ++round_.restart_count;
    before_round_();
  }
}

GroupEnd end_of_report(const NodeReport& report) {
  GroupEnd end{.failure = report.failure,
               .signal = report.signal,
               .text = report.text,
               .stopped_ranks = report.stopped_ranks,
               .killed = report.killed,
               .left_behind = report.left_behind};
  switch (report.end) {
    case NodeReport::End::kSucceeded:
    case NodeReport::End::kStopped:
      end.cause = GroupEnd::Cause::kSucceeded;
      break;
    case NodeReport::End::kFailed:
      end.cause = GroupEnd::Cause::kFailed;
      break;
    case NodeReport::End::kInterrupted:
      end.cause = GroupEnd::Cause::kInterrupted;
      break;
    case NodeReport::End::kRefused:
      end.cause = GroupEnd::Cause::kAborted;
      end.code = program::kWrongUse;
      break;
  }
  return end;
}

}  // namespace narrowcast::launcher
