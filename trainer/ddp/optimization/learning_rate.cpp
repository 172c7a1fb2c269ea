#include <narrowcast/learning_rate.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/common/enumerator_names.h"
#include "trainer/ddp/optimization/default_shares.h"

namespace narrowcast {
namespace {

constexpr EnumeratorNames<ScheduleKind, 4> kScheduleNames{"schedule",
                                                          "ScheduleKind",
                                                          {{{ScheduleKind::kConstant, "constant"},
                                                            {ScheduleKind::kCosine, "cosine"},
                                                            {ScheduleKind::kLinear, "linear"},
                                                            {ScheduleKind::kWsd, "wsd"}}}};

int64_t decay_steps_of(const LearningRateOptions& options, int64_t steps_after_warmup, int64_t steps) {
  switch (options.schedule) {
    case ScheduleKind::kConstant:
      return 0;
    case ScheduleKind::kCosine:
    case ScheduleKind::kLinear:
      return steps_after_warmup;
    case ScheduleKind::kWsd:
      return options.decay_steps.value_or(
          std::min(std::max<int64_t>(steps / kDecayOfSteps.divisor, 1), steps_after_warmup));
  }
  TORCH_CHECK_VALUE(false, "schedule: ", static_cast<int>(options.schedule), " is not a ScheduleKind");
}

void check_decay_steps(const LearningRateOptions& options, int64_t steps_after_warmup) {
  if (!options.decay_steps.has_value()) {
    return;
  }
  TORCH_CHECK_VALUE(options.schedule == ScheduleKind::kWsd, "decay_steps: has no effect with the schedule ",
                    to_string(options.schedule), "; it is for wsd");
  TORCH_CHECK_VALUE(*options.decay_steps >= 1 && *options.decay_steps <= steps_after_warmup,
                    "decay_steps: must be in 1..steps - warmup_steps (", steps_after_warmup, "), but is ",
                    *options.decay_steps);
}

}  // namespace

ScheduleKind parse_schedule_kind(const std::string& name) { return kScheduleNames.parse_known(name); }

std::string to_string(ScheduleKind kind) { return std::string(kScheduleNames.name_of(kind)); }

LearningRateSchedule::LearningRateSchedule(const LearningRateOptions& options, int64_t steps)
    : peak_(options.peak),
      minimum_(options.minimum.value_or(
          options.schedule == ScheduleKind::kConstant ? peak_ : peak_ / static_cast<double>(kMinimumOfPeak.divisor))),
      steps_(steps),
      warmup_steps_(options.warmup_steps.value_or(steps / kWarmupOfSteps.divisor)),
      decay_steps_(decay_steps_of(options, steps_ - warmup_steps_, steps)),
      kind_(options.schedule) {
  TORCH_CHECK_VALUE(steps >= 1, "steps: must be at least 1, but is ", steps);
  TORCH_CHECK_VALUE(std::isfinite(peak_) && peak_ > 0, "learning_rate: must be a positive number, but is ", peak_);
  TORCH_CHECK_VALUE(minimum_ >= 0 && minimum_ <= peak_, "min_learning_rate: must be in 0..learning_rate (", peak_,
                    "), but is ", minimum_);
  TORCH_CHECK_VALUE(warmup_steps_ >= 0 && warmup_steps_ <= steps, "warmup_steps: must be in 0..steps (", steps,
                    "), but is ", warmup_steps_);
  TORCH_CHECK_VALUE(kind_ != ScheduleKind::kConstant || !options.minimum.has_value(),
                    "min_learning_rate: has no effect with a constant schedule");
  check_decay_steps(options, steps_ - warmup_steps_);
}

double LearningRateSchedule::at(int64_t step) const {
  if (step < warmup_steps_) {
    return peak_ * static_cast<double>(step + 1) / static_cast<double>(warmup_steps_);
  }
  const int64_t done = std::min(step, steps_ - 1) - (steps_ - decay_steps_) + 1;
  if (done <= 0) {
    return peak_;
  }
  const double progress = static_cast<double>(done) / static_cast<double>(decay_steps_);
  const bool is_cosine = kind_ == ScheduleKind::kCosine;
  const double left = is_cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return minimum_ + (peak_ - minimum_) * left;
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double learning_rate) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(learning_rate);
  }
}

}  // namespace narrowcast
