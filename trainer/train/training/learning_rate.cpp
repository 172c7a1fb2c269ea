#include "trainer/train/training/learning_rate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace narrowcast::training {

Schedule parse_schedule(const std::string& name) {
  if (name == "cosine") {
    return Schedule::kCosine;
  }
  TORCH_CHECK_VALUE(name == "constant", "schedule: unknown name '", name, "'; known: constant, cosine");
  return Schedule::kConstant;
}

LearningRate::LearningRate(const LearningRateOptions& options, int64_t steps)
    : peak_(options.peak),
      minimum_(options.minimum.value_or(options.schedule == Schedule::kCosine ? options.peak / 10 : options.peak)),
      warmup_steps_(options.warmup_steps.value_or(steps / 20)),
      steps_(steps),
      schedule_(options.schedule) {
  TORCH_CHECK_VALUE(steps >= 1, "steps: must be at least 1, but is ", steps);
  TORCH_CHECK_VALUE(std::isfinite(peak_) && peak_ > 0, "learning_rate: must be a positive number, but is ", peak_);
  TORCH_CHECK_VALUE(minimum_ >= 0 && minimum_ <= peak_, "min_learning_rate: must be in 0..learning_rate (", peak_,
                    "), but is ", minimum_);
  TORCH_CHECK_VALUE(warmup_steps_ >= 0 && warmup_steps_ <= steps, "warmup_steps: must be in 0..steps (", steps,
                    "), but is ", warmup_steps_);
  TORCH_CHECK_VALUE(schedule_ == Schedule::kCosine || !options.minimum.has_value(),
                    "min_learning_rate: has no effect with a constant schedule");
}

double LearningRate::at(int64_t step) const {
  if (step < warmup_steps_) {
    return peak_ * static_cast<double>(step + 1) / static_cast<double>(warmup_steps_);
  }
  if (schedule_ == Schedule::kConstant || warmup_steps_ == steps_) {
    return peak_;
  }
  const int64_t done = std::min(step, steps_ - 1) - warmup_steps_ + 1;
  const double progress = static_cast<double>(done) / static_cast<double>(steps_ - warmup_steps_);
  return minimum_ + (peak_ - minimum_) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace narrowcast::training
