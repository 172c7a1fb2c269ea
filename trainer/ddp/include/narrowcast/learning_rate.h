// Learning-rate schedules: a warm-up, then a constant, cosine, linear or warm-up-stable-decay schedule.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// The shape of a schedule after the warm-up.
enum class ScheduleKind {
  kConstant,  // the peak, to the end
  kCosine,    // half a cosine from the peak down to the minimum, reached at the last step
  kLinear,    // a straight line from the peak down to the minimum, reached at the last step
  kWsd,       // warm-up, stable, decay: the peak, then in the last decay_steps a straight line down to the minimum
};

// "constant", "cosine", "linear" or "wsd"; anything else throws c10::ValueError.
ScheduleKind parse_schedule_kind(const std::string& name);

// The inverse of parse_schedule_kind. c10::ValueError for a number that is not a ScheduleKind.
std::string to_string(ScheduleKind kind);

// Options of LearningRateSchedule. Errors name them as narrowcast-train's flags: learning_rate, min_learning_rate,
// warmup_steps, decay_steps, schedule.
struct LearningRateOptions {
  double peak = 5e-3;                                  // the largest rate (learning_rate), > 0
  std::optional<double> minimum = std::nullopt;        // the last rate, 0..peak; default: a tenth of the peak
  std::optional<int64_t> warmup_steps = std::nullopt;  // 0..steps; default: a twentieth of the steps
  // For kWsd only, 1..steps - warmup_steps; default: a fifth of the steps, at least 1 if the warm-up leaves one.
  std::optional<int64_t> decay_steps = std::nullopt;
  ScheduleKind schedule = ScheduleKind::kCosine;
};

// The learning rate as a pure function of the step: a training that resumes needs only its step.
//
//   const LearningRateSchedule schedule({.peak = 1e-3, .warmup_steps = 100}, /*steps=*/5000);
//   for (int64_t step = 0; step < 5000; ++step) {
//     ...
//     set_learning_rate(optimizer, schedule.at(step));
//     optimizer.step();
//   }
//
// Step s of w warm-up steps (from 0) has peak * (s + 1) / w; then `schedule` holds. docs/reference/training.md has the
// formulas.
class LearningRateSchedule {
 public:
  // `steps`: optimizer steps of the whole training, >= 1. Throws c10::ValueError naming an option that is out of range,
  // a minimum with kConstant, or decay steps with any kind except kWsd.
  LearningRateSchedule(const LearningRateOptions& options, int64_t steps);

  // The learning rate of step 0..steps-1. Later steps have the value of the last step.
  double at(int64_t step) const;

  // Options with their defaults filled in. With kConstant the minimum is the peak.
  double minimum() const { return minimum_; }
  int64_t warmup_steps() const { return warmup_steps_; }  // Number of first steps in which the rate rises; may be 0.
  // Number of last steps in which the rate falls: all after the warm-up with kCosine and kLinear, 0 with kConstant.
  int64_t decay_steps() const { return decay_steps_; }

 private:
  double peak_;
  double minimum_;
  int64_t steps_;
  int64_t warmup_steps_;
  int64_t decay_steps_;
  ScheduleKind kind_;
};

// Sets the learning rate of all parameter groups.
void set_learning_rate(torch::optim::Optimizer& optimizer, double learning_rate);

}  // namespace narrowcast
