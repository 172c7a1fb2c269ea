// Ranks of different speeds, as their clocks tell: no test waits.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/trainer/ddp/outer/outer_fixtures.h"

namespace narrowcast::testing {

// The time of one rank. All times are binary fractions, which sums do not round.
struct Clock {
  explicit Clock(double seconds_per_step) : seconds(seconds_per_step) {}
  std::function<double()> function() {
    return [this] { return now; };
  }
  // A step takes its time.
  void pass() { now += seconds; }

  double seconds;
  double now = 0;
};

inline OuterOptions seconds_options() { return OuterOptions().sync_seconds(2).wire(outer_wire()); }

// The steps that ranks of these speeds take in two seconds.
inline double seconds_per_step(int64_t rank) { return 0.25 * static_cast<double>(rank + 1); }
inline constexpr int64_t kStepsOfRank[] = {8, 4, 3, 2};

// Takes steps to the end of a round, and returns their number.
inline int64_t take_round(SmallTraining& training, OuterOptimizer& outer, Clock& clock) {
  int64_t steps = 0;
  do {
    clock.pass();
    training.step(outer);
    ++steps;
  } while (!outer.steps_are_common());
  return steps;
}

}  // namespace narrowcast::testing
