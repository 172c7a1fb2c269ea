#include "trainer/train/training/training_options.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/enumerator_names.h"
#include "trainer/train/data/dataset.h"

namespace narrowcast::training {
namespace {

constexpr EnumeratorNames<Schedule, 4> kScheduleNames{"schedule",
                                                      "Schedule",
                                                      {{{Schedule::kConstant, "constant"},
                                                        {Schedule::kCosine, "cosine"},
                                                        {Schedule::kLinear, "linear"},
                                                        {Schedule::kWsd, "wsd"}}}};

void check_not_below(const char* name, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, name, ": must be at least ", least, ", but is ", value);
}

int64_t decay_steps_of(const LearningRateOptions& options, int64_t steps_after_warmup, int64_t steps) {
  switch (options.schedule) {
    case Schedule::kConstant:
      return 0;
    case Schedule::kCosine:
    case Schedule::kLinear:
      return steps_after_warmup;
    case Schedule::kWsd:
      return options.decay_steps.value_or(
          std::min(std::max<int64_t>(steps / kDecayOfSteps.divisor, 1), steps_after_warmup));
  }
  TORCH_CHECK_VALUE(false, "schedule: ", static_cast<int>(options.schedule), " is no Schedule");
}

void check_decay_steps(const LearningRateOptions& options, int64_t steps_after_warmup) {
  if (!options.decay_steps.has_value()) {
    return;
  }
  TORCH_CHECK_VALUE(options.schedule == Schedule::kWsd, "decay_steps: has no effect with the schedule ",
                    to_string(options.schedule), "; it is for wsd");
  TORCH_CHECK_VALUE(*options.decay_steps >= 1 && *options.decay_steps <= steps_after_warmup,
                    "decay_steps: must be in 1..steps - warmup_steps (", steps_after_warmup, "), but is ",
                    *options.decay_steps);
}

}  // namespace

Schedule parse_schedule(const std::string& name) { return kScheduleNames.parse_known(name); }

std::string to_string(Schedule schedule) { return std::string(kScheduleNames.name_of(schedule)); }

LearningRate::LearningRate(const LearningRateOptions& options, int64_t steps)
    : peak_(options.peak),
      minimum_(options.minimum.value_or(
          options.schedule == Schedule::kConstant ? peak_ : peak_ / static_cast<double>(kMinimumOfPeak.divisor))),
      steps_(steps),
      warmup_steps_(options.warmup_steps.value_or(steps / kWarmupOfSteps.divisor)),
      decay_steps_(decay_steps_of(options, steps_ - warmup_steps_, steps)),
      schedule_(options.schedule) {
  TORCH_CHECK_VALUE(steps >= 1, "steps: must be at least 1, but is ", steps);
  TORCH_CHECK_VALUE(std::isfinite(peak_) && peak_ > 0, "learning_rate: must be a positive number, but is ", peak_);
  TORCH_CHECK_VALUE(minimum_ >= 0 && minimum_ <= peak_, "min_learning_rate: must be in 0..learning_rate (", peak_,
                    "), but is ", minimum_);
  TORCH_CHECK_VALUE(warmup_steps_ >= 0 && warmup_steps_ <= steps, "warmup_steps: must be in 0..steps (", steps,
                    "), but is ", warmup_steps_);
  TORCH_CHECK_VALUE(schedule_ != Schedule::kConstant || !options.minimum.has_value(),
                    "min_learning_rate: has no effect with a constant schedule");
  check_decay_steps(options, steps_ - warmup_steps_);
}

double LearningRate::at(int64_t step) const {
  if (step < warmup_steps_) {
    return peak_ * static_cast<double>(step + 1) / static_cast<double>(warmup_steps_);
  }
  const int64_t done = std::min(step, steps_ - 1) - (steps_ - decay_steps_) + 1;
  if (done <= 0) {
    return peak_;
  }
  const double progress = static_cast<double>(done) / static_cast<double>(decay_steps_);
  const bool is_cosine = schedule_ == Schedule::kCosine;
  const double left = is_cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return minimum_ + (peak_ - minimum_) * left;
}

void check_training_options(const TrainingOptions& options, int64_t world_size) {
  check_not_below("steps", options.steps, 1);
  check_not_below("batch_size", options.batch_size, 1);
  check_not_below("accumulation_steps", options.accumulation_steps, 1);
  check_not_below("eval_every", options.eval_every, 0);
  check_not_below("eval_batches", options.eval_batches, 0);
  check_not_below("early_stop", options.early_stop, 0);
  TORCH_CHECK_VALUE(options.early_stop == 0 || (options.eval_every > 0 && options.eval_batches > 0),
                    "early_stop: needs eval_every, after how many steps to look at the held-out data");
  check_not_below("log_every", options.log_every, 1);
  check_not_below("check_replicas_every", options.check_replicas_every, 0);
  TORCH_CHECK_VALUE(data::divides_evenly({.global_batch = options.batch_size,
                                          .world_size = world_size,
                                          .accumulation_steps = options.accumulation_steps}),
                    "batch_size: must be divisible by ranks * accumulation_steps (", world_size, " * ",
                    options.accumulation_steps, "), but is ", options.batch_size);
  check_not_below("max_skipped_steps", options.max_skipped_steps, 1);
  TORCH_CHECK_VALUE(options.skip_nonfinite_steps || options.precision != Precision::kFp16,
                    "skip_nonfinite_steps: must be true with precision fp16, whose scale is found by such steps");
  TORCH_CHECK_VALUE(std::isfinite(options.clip_grad_norm) && options.clip_grad_norm >= 0,
                    "clip_grad_norm: must be at least 0, but is ", options.clip_grad_norm);
  LearningRate(options.learning_rate, options.steps);
  check_optimizer_options(options.optimizer);
}

}  // namespace narrowcast::training
