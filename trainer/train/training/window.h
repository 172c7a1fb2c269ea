// The work of all ranks since a training's last report.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/outer_optimizer.h>
#include <narrowcast/process_group.h>
#include "trainer/ddp/recovery/stop_agreement.h"
#include "trainer/train/reporting/progress.h"

namespace narrowcast::training {

// One rank's part.
struct WindowOfRank {
  double loss = 0;               // sum over the steps
  int64_t steps = 0;             // taken
  int64_t batches = 0;           // steps taken and skipped
  int64_t nonfinite_steps = 0;   // with gradients of this rank that were not finite
  int64_t skipped_in_a_row = 0;  // the last skipped steps
  int64_t peak_memory_bytes = 0;
};

class OptimizerSteps;
struct Counters;

// Returns the counters of the window, which become 0: the work of this rank since the last call.
WindowOfRank take_window(OptimizerSteps& steps, Counters& counters);

// The results of all ranks.
struct Window {
  double loss = 0;  // mean over ranks and steps
  bool has_loss = false;
  double batches = 0;  // mean over ranks
  std::optional<reporting::SkippedReport> skipped;
  int64_t peak_memory_bytes = 0;              // of the rank that has most
  std::vector<int64_t> rounds_by_group = {};  // with a quorum: OuterReport
};

// Collective. With an outer optimizer ranks skip steps independently: the longest run of skipped steps counts. Throws
// c10::DistBackendError if a peer fails.
Window window_of_all_ranks(const ProcessGroupPtr& group, const WindowOfRank& own);

// The same with a quorum of outer steps (OuterOptions::quorum), in which no rank waits for all others: each group sends
// its part with its messages, and each rank adds up the parts of the rounds that it ends. So all ranks have the same
// window after the same round.
class WindowOfRounds {
 public:
  // Their numbers.
  WindowOfRounds(int64_t ranks, int64_t groups)
      : ranks_(ranks), rounds_by_group_(static_cast<size_t>(groups), 0), missed_(static_cast<size_t>(groups), 0) {}

  // Returns the numbers of rank `rank`. `asked` returns the signal that asks all ranks to stop, 0 without one; it may
  // be null.
  static OuterOptimizer::Notes notes_of(const WindowOfRank& own, int64_t rank, const std::function<int()>& asked);
  // The numbers that a group sends: of all of its ranks. Of ranks with gradients that were not finite, it has the
  // first.
  static OuterOptimizer::Notes combined(const std::vector<OuterOptimizer::Notes>& ranks);

  // `observer` learns which groups have missed kMissedRounds rounds in a row, and which of them take part again. Rounds
  // in which all ranks meet to average late messages do not count. It may be null.
  void add(const OuterOptimizer::Round& round, reporting::TrainingObserver* observer);
  static constexpr int64_t kMissedRounds = 5;
  // Whether a step was added since the last window.
  bool has_steps() const { return sum_.batches > 0; }
  // The greatest signal that was added; else kNewcomers if newcomers were added since the last call, else 0.
  int take_signal() {
    const bool newcomers = std::exchange(newcomers_, false);
    return signal_ == 0 && newcomers ? recovery::kNewcomers : signal_;
  }
  Window take_window();

 private:
  void count_groups(const OuterOptimizer::Round& round, reporting::TrainingObserver* observer);

  const int64_t ranks_;
  WindowOfRank sum_;  // and the greatest of peak_memory_bytes
  std::vector<int64_t> nonfinite_ranks_;
  std::map<int64_t, int64_t> skipped_in_a_row_;  // by group: as of its last round
  std::vector<int64_t> rounds_by_group_;         // in which it took part
  int signal_ = 0;
  bool newcomers_ = false;
  int64_t last_steps_ = 0;       // at the end of the last round
  std::vector<int64_t> missed_;  // by group: rounds in a row; not of this window alone
};

// The report of the sizes of buckets from which one was chosen after `step` steps.
reporting::BucketsReport buckets_report(int64_t step, const BucketChoice& choice);

// The report of an outer optimizer so far; empty for null.
std::optional<reporting::OuterReport> outer_report(const OuterOptimizer* outer);

// The report of a window that took `seconds`. `units_per_step`: tokens or samples of all ranks.
reporting::StepReport step_report(OptimizerSteps& steps, const Counters& counters, const Window& window, double seconds,
                                  int64_t units_per_step);

// Collective: each rank's share of waiting in these seconds. `waited`: by this rank. Throws c10::DistBackendError if a
// peer fails.
reporting::ExchangeReport exchange_of_all_ranks(const ProcessGroupPtr& group, double waited, double seconds);

}  // namespace narrowcast::training
