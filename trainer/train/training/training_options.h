// What a training is told, and the learning rate of each optimizer step, which follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/train/training/optimizer.h"
#include "trainer/train/training/precision.h"

namespace narrowcast::training {

// What follows the warm-up.
enum class Schedule {
  kConstant,  // the peak, to the end
  kCosine,    // half a cosine from the peak down to the minimum, reached at the last step
  kLinear,    // a line between the same
  kWsd,       // warm-up, stable, decay: the peak, then in the last steps a line down to the minimum
};

// "constant", "cosine", "linear" or "wsd"; anything else throws c10::ValueError.
Schedule parse_schedule(const std::string& name);

// The name of it.
std::string to_string(Schedule schedule);

// A share by default, 1 / divisor: as a number, and in words for people.
struct DefaultShare {
  int64_t divisor;
  const char* text;
};

// What options of the learning rate are if not given: shares of its peak, and of the steps of the training.
inline constexpr DefaultShare kMinimumOfPeak = {10, "a tenth"};
inline constexpr DefaultShare kWarmupOfSteps = {20, "a twentieth"};
inline constexpr DefaultShare kDecayOfSteps = {5, "a fifth"};

// The values between which it moves.
struct LearningRateOptions {
  double peak = 5e-3;                                  // > 0
  std::optional<double> minimum = std::nullopt;        // where it ends, 0..peak; kMinimumOfPeak if not given
  std::optional<int64_t> warmup_steps = std::nullopt;  // 0..steps; kWarmupOfSteps if not given
  std::optional<int64_t> decay_steps = std::nullopt;   // of kWsd, 1..steps - warmup_steps; kDecayOfSteps if not given
  Schedule schedule = Schedule::kCosine;
};

// A pure function of the step: warm-up of w steps, the s-th of them (from 0) at peak * (s + 1) / w, then the schedule.
class LearningRate {
 public:
  // `steps`: optimizer steps in the whole training. Throws c10::ValueError for a value out of its range, a minimum
  // that a constant schedule would ignore, or decay steps that any but kWsd would.
  LearningRate(const LearningRateOptions& options, int64_t steps);

  // For step 0..steps-1; the last one's value beyond.
  double at(int64_t step) const;

  // What the options left open, filled in.
  double minimum() const { return minimum_; }
  int64_t warmup_steps() const { return warmup_steps_; }
  // The last steps, in which it falls: all after the warm-up but with kWsd. None with kConstant.
  int64_t decay_steps() const { return decay_steps_; }

 private:
  double peak_;
  double minimum_;
  int64_t steps_;
  int64_t warmup_steps_;
  int64_t decay_steps_;
  Schedule schedule_;
};

// The numbers of a training; what it works with is TrainingSetup (training_loop.h).
struct TrainingOptions {
  int64_t steps = 600;             // optimizer steps, >= 1
  int64_t batch_size = 32;         // samples per optimizer step over all ranks; world * accumulation_steps divides it
  int64_t accumulation_steps = 1;  // backward passes per optimizer step, >= 1
  OptimizerOptions optimizer = {};
  LearningRateOptions learning_rate = {};
  double clip_grad_norm = 1;         // largest 2-norm of the averaged gradients; 0: no limit
  bool skip_nonfinite_steps = true;  // leave the model as it was where a gradient is Inf or NaN; always with kFp16
  int64_t max_skipped_steps = 100;   // so many of them in a row end the training, at the next report; >= 1
  Precision precision = Precision::kFp32;
  int64_t eval_every = 0;     // steps between evaluations; 0: only after the last step
  int64_t eval_batches = 16;  // held-out samples in one evaluation, in batches of batch_size; 0: no evaluation
  int64_t early_stop = 0;     // evaluations in a row without a lower loss that end the training; 0: none do
  int64_t log_every = 10;     // steps between reports, >= 1
  // Steps between comparisons of all ranks' replicas, where the hook keeps them equal; 0: only before checkpoints.
  int64_t check_replicas_every = 500;
  uint64_t seed = 0;  // of the order of the data
};

// Throws c10::ValueError naming the flag and the value if training on `world_size` ranks could not start.
void check_training_options(const TrainingOptions& options, int64_t world_size);

}  // namespace narrowcast::training
