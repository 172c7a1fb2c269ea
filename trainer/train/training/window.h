// What all ranks have done since a training's last report.
#pragma once

#include <cstdint>
#include <optional>

#include <narrowcast/outer_optimizer.h>
#include <narrowcast/process_group.h>
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

// The results of all ranks.
struct Window {
  double loss = 0;  // mean over ranks and steps
  bool has_loss = false;
  double batches = 0;  // mean over ranks
  std::optional<reporting::SkippedReport> skipped;
  int64_t peak_memory_bytes = 0;  // of the rank that has most
};

// Collective. With an outer optimizer ranks skip steps independently: the longest run of skipped steps counts. Throws
// c10::DistBackendError if a peer fails.
Window window_of_all_ranks(const ProcessGroupPtr& group, const WindowOfRank& own);

// The report of an outer optimizer so far; empty for null.
std::optional<reporting::OuterReport> outer_report(const OuterOptimizer* outer);

// Collective: each rank's share of waiting in these seconds. `waited`: by this rank. Throws c10::DistBackendError if a
// peer fails.
reporting::ExchangeReport exchange_of_all_ranks(const ProcessGroupPtr& group, double waited, double seconds);

}  // namespace narrowcast::training
