// The learning rate of each optimizer step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace narrowcast::training {

// What follows the warm-up.
enum class Schedule {
  kConstant,  // the peak, to the end
  kCosine,    // half a cosine from the peak down to the minimum, reached at the last step
};

// "constant" or "cosine"; anything else throws c10::ValueError.
Schedule parse_schedule(const std::string& name);

struct LearningRateOptions {
  double peak = 5e-3;                                  // > 0
  std::optional<double> minimum = std::nullopt;        // of the cosine, 0..peak; a tenth of the peak if not given
  std::optional<int64_t> warmup_steps = std::nullopt;  // 0..steps; a twentieth of the steps if not given
  Schedule schedule = Schedule::kCosine;
};

// A pure function of the step: warm-up of w steps, the s-th of them (from 0) at
// peak * (s + 1) / w, then the schedule.
class LearningRate {
 public:
  // `steps`: optimizer steps in the whole training. Throws c10::ValueError for a value out of its
  // range, or a minimum that a constant schedule would ignore.
  LearningRate(const LearningRateOptions& options, int64_t steps);

  // For step 0..steps-1; the last one's value beyond.
  double at(int64_t step) const;

  // What the options left open, filled in.
  double minimum() const { return minimum_; }
  int64_t warmup_steps() const { return warmup_steps_; }

 private:
  double peak_;
  double minimum_;
  int64_t warmup_steps_;
  int64_t steps_;
  Schedule schedule_;
};

}  // namespace narrowcast::training
