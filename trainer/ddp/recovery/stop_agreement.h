// How ranks agree after which step to stop, if signals ask some of them to, at different times.
//
// Every `interval` steps all ranks begin a round: each contributes the signal that it received, 0 without one, and its
// seconds per step, and an all-reduce computes the maximum of both. A rank reads a round's result when the next round
// is due. So it waits only for ranks that are more than an interval behind, and all ranks read the same numbers after
// the same step. They stop there if the signal is not 0. Otherwise the seconds per step determine the next interval:
//
//   step of rank 0   1   2   3   4   5   6   7   8   9
//   rounds begin     a   b       c       d               intervals of 1 and 2 steps
//   rounds are read      a       b       c       d
//   rank 1 is asked              *                       during step 4: round c has the signal, all stop after step 6
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include <narrowcast/process_group.h>

namespace narrowcast::recovery {

// Instead of a signal: other nodes wait to be taken in (has_newcomers in change_watch.h). It is greater than every
// signal. Signals are not forgotten meanwhile.
inline constexpr int kNewcomers = 1000;

// The number of steps from one round to the next: about half a second, at most double the interval before, and 1 to
// 4096. `seconds_per_step` of 0 or less counts as no time.
int64_t next_interval(int64_t interval, double seconds_per_step);

// All ranks make the same calls, from one thread each. A call throws c10::DistBackendError if a peer failed.
class StopAgreement {
 public:
  // The signal that asks this process to stop, or kNewcomers; 0 without either.
  using Asked = std::function<int()>;

  // `asked` must be given on all ranks or on none. Null: no rank can ask, and nothing is sent.
  StopAgreement(ProcessGroupPtr group, Asked asked);

  // Before the first step: the signal for which all ranks stop at once, else 0. Waits for all ranks.
  int before_first_step();
  // After each step: the signal for which all ranks stop here, else 0.
  int after_step();
  // The same, but waits for all ranks, and no signal that was received before has to wait for another call. For places
  // where all ranks have just met.
  int at_meeting();
  // After the last step: waits for a round in progress.
  void finish() { read(); }

  // Steps from the last round to the next.
  int64_t interval() const { return interval_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_alone() const { return group_->getSize() == 1; }
  void begin();
  int read();

  const ProcessGroupPtr group_;
  const Asked asked_;
  int64_t interval_ = 1;
  int64_t steps_ = 0;  // since the last round
  Clock::time_point began_;
  std::vector<at::Tensor> round_;        // signal and seconds per step
  c10::intrusive_ptr<c10d::Work> work_;  // null without a round in progress
};

}  // namespace narrowcast::recovery
