// Decides after which step of a rank its round of OuterOptions::sync_seconds is over.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <narrowcast/outer_options.h>
#include <narrowcast/process_group.h>
#include "trainer/ddp/quorum/local_group.h"

namespace narrowcast {

// The clock of one rank. Ranks of a local group use the clock of its first rank.
class RoundClock {
 public:
  // A collective of all ranks of `all`; see LocalGroup. `options` have sync_seconds.
  RoundClock(const ProcessGroupPtr& all, const std::vector<int64_t>& groups, const OuterOptions& options);

  // A collective of the local group, after each step: whether sync_seconds have passed since the round began. Throws
  // c10::DistBackendError if a rank of the local group fails.
  bool is_over() const;

  // Seconds since the round began.
  double elapsed() const { return now_() - began_; }
  // The round begins, or continues after `elapsed` seconds of it.
  void restart(double elapsed = 0) { began_ = now_() - elapsed; }

 private:
  const double seconds_;
  const std::function<double()> now_;
  const LocalGroup group_;
  double began_;
};

}  // namespace narrowcast
