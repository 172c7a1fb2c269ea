#include "trainer/train/training/training_options.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/support/error_message.h"

namespace narrowcast::training {
namespace {

using ::testing::HasSubstr;

std::string message_of(const LearningRateOptions& options, int64_t steps) {
  return testing::error_message<c10::ValueError>([&] { LearningRate(options, steps); });
}

TEST(LearningRate, WarmsUpLinearlyAndReachesThePeakAtItsLastStep) {
  const LearningRate rate({.peak = 0.4, .minimum = 0.1, .warmup_steps = 4}, 10);
  EXPECT_DOUBLE_EQ(rate.at(0), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(1), 0.2);
  EXPECT_DOUBLE_EQ(rate.at(3), 0.4);
}

TEST(LearningRate, CosineFallsFromThePeakToTheMinimumAtTheLastStep) {
  const LearningRate rate({.peak = 0.4, .minimum = 0.1, .warmup_steps = 2}, 12);
  for (int64_t step = 2; step < 12; ++step) {
    EXPECT_LT(rate.at(step), rate.at(step - 1)) << step;
  }
  // Half of the ten steps after the warm-up: cos(pi / 2) is zero.
  EXPECT_NEAR(rate.at(6), 0.25, 1e-15);
  EXPECT_DOUBLE_EQ(rate.at(11), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(100), 0.1);
}

TEST(LearningRate, ConstantStaysAtThePeak) {
  const LearningRate rate({.peak = 0.5, .warmup_steps = 2, .schedule = Schedule::kConstant}, 6);
  EXPECT_DOUBLE_EQ(rate.at(0), 0.25);
  for (int64_t step = 1; step < 6; ++step) {
    EXPECT_DOUBLE_EQ(rate.at(step), 0.5);
  }
}

TEST(LearningRate, LinearFallsByEqualPartsToTheMinimumAtTheLastStep) {
  const LearningRate rate({.peak = 0.4, .minimum = 0.1, .warmup_steps = 2, .schedule = Schedule::kLinear}, 5);
  EXPECT_DOUBLE_EQ(rate.at(1), 0.4);
  EXPECT_DOUBLE_EQ(rate.at(2), 0.3);
  EXPECT_DOUBLE_EQ(rate.at(3), 0.2);
  EXPECT_EQ(rate.at(4), 0.1) << "to the bit";
  EXPECT_EQ(rate.at(100), 0.1);
}

TEST(LearningRate, WsdStaysAtThePeakAndFallsInTheLastStepsOnly) {
  const LearningRate rate(
      {.peak = 0.5, .minimum = 0.1, .warmup_steps = 2, .decay_steps = 4, .schedule = Schedule::kWsd}, 10);
  EXPECT_DOUBLE_EQ(rate.at(0), 0.25);
  for (int64_t step = 1; step < 6; ++step) {
    EXPECT_EQ(rate.at(step), 0.5) << step;
  }
  for (int64_t step = 6; step < 10; ++step) {
    EXPECT_DOUBLE_EQ(rate.at(step), 0.5 - 0.1 * static_cast<double>(step - 5)) << step;
  }
  EXPECT_EQ(rate.at(9), 0.1);
}

TEST(LearningRate, WsdDoesNotDependOnTheEndBeforeItDecays) {
  const LearningRateOptions options = {.warmup_steps = 3, .decay_steps = 5, .schedule = Schedule::kWsd};
  const LearningRate shorter(options, 20);
  const LearningRate longer(options, 30);
  for (int64_t step = 0; step < 15; ++step) {
    EXPECT_EQ(shorter.at(step), longer.at(step)) << step;
  }
  EXPECT_LT(shorter.at(15), longer.at(15));
}

TEST(LearningRate, FillsInTheStepsOfADecay) {
  const auto decay = [](int64_t steps, int64_t warmup) {
    return LearningRate({.warmup_steps = warmup, .schedule = Schedule::kWsd}, steps).decay_steps();
  };
  EXPECT_EQ(decay(100, 5), 20);
  EXPECT_EQ(decay(4, 0), 1) << "there is one";
  EXPECT_EQ(decay(100, 90), 10) << "the warm-up leaves no more";
  EXPECT_EQ(decay(4, 4), 0);
  EXPECT_DOUBLE_EQ(LearningRate({.peak = 0.2, .schedule = Schedule::kWsd}, 100).minimum(), 0.02);
  EXPECT_DOUBLE_EQ(LearningRate({.peak = 0.2, .schedule = Schedule::kLinear}, 100).minimum(), 0.02);
}

TEST(LearningRate, FillsInWhatIsNotGiven) {
  const LearningRate rate({.peak = 0.2}, 100);
  EXPECT_DOUBLE_EQ(rate.minimum(), 0.02);
  EXPECT_EQ(rate.warmup_steps(), 5);
  EXPECT_EQ(LearningRate({}, 19).warmup_steps(), 0);
}

TEST(LearningRate, WarmupMayTakeAllSteps) {
  const LearningRate rate({.peak = 1, .minimum = 0, .warmup_steps = 4}, 4);
  EXPECT_DOUBLE_EQ(rate.at(3), 1);
  EXPECT_DOUBLE_EQ(rate.at(4), 1);
}

TEST(LearningRate, RefusesValuesOutOfRangeByName) {
  EXPECT_THAT(message_of({.peak = 0}, 10), HasSubstr("learning_rate: must be a positive number, but is 0"));
  EXPECT_THAT(message_of({.peak = std::nan("")}, 10), HasSubstr("learning_rate"));
  EXPECT_THAT(message_of({.peak = std::numeric_limits<double>::infinity()}, 10), HasSubstr("learning_rate"));
  EXPECT_THAT(message_of({.peak = 1, .minimum = 2}, 10), HasSubstr("min_learning_rate: must be in 0..learning_rate"));
  EXPECT_THAT(message_of({.minimum = -1}, 10), HasSubstr("min_learning_rate"));
  EXPECT_THAT(message_of({.warmup_steps = 11}, 10), HasSubstr("warmup_steps: must be in 0..steps (10), but is 11"));
  EXPECT_THAT(message_of({}, 0), HasSubstr("steps: must be at least 1, but is 0"));
}

TEST(LearningRate, RefusesAMinimumThatAConstantScheduleIgnores) {
  EXPECT_THAT(message_of({.minimum = 1e-4, .schedule = Schedule::kConstant}, 10), HasSubstr("has no effect"));
}

TEST(LearningRate, RefusesStepsOfADecayThatHaveNoEffectOrNoRoom) {
  const auto complaint_of = [](Schedule schedule, int64_t decay) {
    return message_of({.warmup_steps = 2, .decay_steps = decay, .schedule = schedule}, 10);
  };
  EXPECT_EQ(complaint_of(Schedule::kCosine, 5), "decay_steps: has no effect with the schedule cosine; it is for wsd");
  EXPECT_THAT(complaint_of(Schedule::kLinear, 5), HasSubstr("has no effect with the schedule linear"));
  EXPECT_THAT(complaint_of(Schedule::kConstant, 5), HasSubstr("has no effect with the schedule constant"));
  EXPECT_EQ(complaint_of(Schedule::kWsd, 9), "decay_steps: must be in 1..steps - warmup_steps (8), but is 9");
  EXPECT_EQ(complaint_of(Schedule::kWsd, 0), "decay_steps: must be in 1..steps - warmup_steps (8), but is 0");
  EXPECT_EQ(complaint_of(Schedule::kWsd, 8), "nothing was thrown");
}

TEST(Schedule, IsKnownByName) {
  EXPECT_EQ(parse_schedule("cosine"), Schedule::kCosine);
  EXPECT_EQ(parse_schedule("constant"), Schedule::kConstant);
  EXPECT_EQ(parse_schedule("linear"), Schedule::kLinear);
  EXPECT_EQ(parse_schedule("wsd"), Schedule::kWsd);
  EXPECT_EQ(to_string(Schedule::kCosine), "cosine");
  EXPECT_EQ(to_string(Schedule::kConstant), "constant");
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { parse_schedule("step"); }),
            "schedule: unknown name 'step'; known: constant, cosine, linear, wsd");
  EXPECT_THROW(to_string(static_cast<Schedule>(4)), c10::ValueError);
}

std::string complaint(const TrainingOptions& options, int64_t world_size) {
  return testing::error_message<c10::ValueError>([&] { check_training_options(options, world_size); });
}

TEST(CheckTrainingOptions, NamesTheOptionAndTheValue) {
  TrainingOptions options;
  options.batch_size = 12;
  EXPECT_EQ(complaint(options, 4), "nothing was thrown");
  EXPECT_THAT(complaint(options, 5), HasSubstr("batch_size: must be divisible by ranks * accumulation_steps (5 * 1)"));
  const auto with = [&](auto change) {
    TrainingOptions changed = options;
    change(changed);
    return complaint(changed, 2);
  };
  EXPECT_THAT(with([](auto& o) { o.steps = 0; }), HasSubstr("steps: must be at least 1, but is 0"));
  EXPECT_THAT(with([](auto& o) { o.batch_size = 0; }), HasSubstr("batch_size: must be at least 1"));
  EXPECT_THAT(with([](auto& o) { o.accumulation_steps = 0; }), HasSubstr("accumulation_steps"));
  EXPECT_THAT(with([](auto& o) { o.accumulation_steps = 4; }), HasSubstr("(2 * 4), but is 12"));
  EXPECT_THAT(with([](auto& o) { o.eval_every = -1; }), HasSubstr("eval_every"));
  EXPECT_THAT(with([](auto& o) { o.eval_batches = -1; }), HasSubstr("eval_batches"));
  EXPECT_THAT(with([](auto& o) { o.log_every = 0; }), HasSubstr("log_every"));
  EXPECT_THAT(with([](auto& o) { o.max_skipped_steps = 0; }), HasSubstr("max_skipped_steps: must be at least 1"));
  EXPECT_THAT(with([](auto& o) { o.check_replicas_every = -1; }), HasSubstr("check_replicas_every"));
  EXPECT_THAT(with([](auto& o) { o.early_stop = -1; }), HasSubstr("early_stop: must be at least 0, but is -1"));
  EXPECT_THAT(with([](auto& o) { o.early_stop = 1; }), HasSubstr("early_stop: needs eval_every"));
  EXPECT_THAT(with([](auto& o) { o.clip_grad_norm = -1; }), HasSubstr("clip_grad_norm"));
  EXPECT_THAT(with([](auto& o) { o.learning_rate.peak = -1; }), HasSubstr("learning_rate"));
}

}  // namespace
}  // namespace narrowcast::training
