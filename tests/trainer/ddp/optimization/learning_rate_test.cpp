#include <narrowcast/learning_rate.h>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using ::testing::HasSubstr;

std::string message_of(const LearningRateOptions& options, int64_t steps) {
  return testing::error_message<c10::ValueError>([&] { LearningRateSchedule(options, steps); });
}

TEST(LearningRateSchedule, WarmsUpLinearlyAndReachesThePeakAtItsLastStep) {
  const LearningRateSchedule rate({.peak = 0.4, .minimum = 0.1, .warmup_steps = 4}, 10);
  EXPECT_DOUBLE_EQ(rate.at(0), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(1), 0.2);
  EXPECT_DOUBLE_EQ(rate.at(3), 0.4);
}

TEST(LearningRateSchedule, CosineFallsFromThePeakToTheMinimumAtTheLastStep) {
  const LearningRateSchedule rate({.peak = 0.4, .minimum = 0.1, .warmup_steps = 2}, 12);
  for (int64_t step = 2; step < 12; ++step) {
    EXPECT_LT(rate.at(step), rate.at(step - 1)) << step;
  }
  // After half of the ten steps since the warm-up: cos(pi / 2) is zero.
  EXPECT_NEAR(rate.at(6), 0.25, 1e-15);
  EXPECT_DOUBLE_EQ(rate.at(11), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(100), 0.1);
}

TEST(LearningRateSchedule, ConstantStaysAtThePeak) {
  const LearningRateSchedule rate({.peak = 0.5, .warmup_steps = 2, .schedule = ScheduleKind::kConstant}, 6);
  EXPECT_DOUBLE_EQ(rate.at(0), 0.25);
  for (int64_t step = 1; step < 6; ++step) {
    EXPECT_DOUBLE_EQ(rate.at(step), 0.5);
  }
}

TEST(LearningRateSchedule, LinearFallsByEqualPartsToTheMinimumAtTheLastStep) {
  const LearningRateSchedule rate({.peak = 0.4, .minimum = 0.1, .warmup_steps = 2, .schedule = ScheduleKind::kLinear},
                                  5);
  EXPECT_DOUBLE_EQ(rate.at(1), 0.4);
  EXPECT_DOUBLE_EQ(rate.at(2), 0.3);
  EXPECT_DOUBLE_EQ(rate.at(3), 0.2);
  EXPECT_EQ(rate.at(4), 0.1) << "to the bit";
  EXPECT_EQ(rate.at(100), 0.1);
}

TEST(LearningRateSchedule, WsdStaysAtThePeakAndFallsInTheLastStepsOnly) {
  const LearningRateSchedule rate(
      {.peak = 0.5, .minimum = 0.1, .warmup_steps = 2, .decay_steps = 4, .schedule = ScheduleKind::kWsd}, 10);
  EXPECT_DOUBLE_EQ(rate.at(0), 0.25);
  for (int64_t step = 1; step < 6; ++step) {
    EXPECT_EQ(rate.at(step), 0.5) << step;
  }
  for (int64_t step = 6; step < 10; ++step) {
    EXPECT_DOUBLE_EQ(rate.at(step), 0.5 - 0.1 * static_cast<double>(step - 5)) << step;
  }
  EXPECT_EQ(rate.at(9), 0.1);
}

TEST(LearningRateSchedule, WsdDoesNotDependOnTheEndBeforeItDecays) {
  const LearningRateOptions options = {.warmup_steps = 3, .decay_steps = 5, .schedule = ScheduleKind::kWsd};
  const LearningRateSchedule shorter(options, 20);
  const LearningRateSchedule longer(options, 30);
  for (int64_t step = 0; step < 15; ++step) {
    EXPECT_EQ(shorter.at(step), longer.at(step)) << step;
  }
  EXPECT_LT(shorter.at(15), longer.at(15));
}

TEST(LearningRateSchedule, FillsInTheStepsOfADecay) {
  const auto decay = [](int64_t steps, int64_t warmup) {
    return LearningRateSchedule({.warmup_steps = warmup, .schedule = ScheduleKind::kWsd}, steps).decay_steps();
  };
  EXPECT_EQ(decay(100, 5), 20);
  EXPECT_EQ(decay(4, 0), 1) << "there is one";
  EXPECT_EQ(decay(100, 90), 10) << "the warm-up leaves no more";
  EXPECT_EQ(decay(4, 4), 0);
  EXPECT_DOUBLE_EQ(LearningRateSchedule({.peak = 0.2, .schedule = ScheduleKind::kWsd}, 100).minimum(), 0.02);
  EXPECT_DOUBLE_EQ(LearningRateSchedule({.peak = 0.2, .schedule = ScheduleKind::kLinear}, 100).minimum(), 0.02);
}

TEST(LearningRateSchedule, FillsInWhatIsNotGiven) {
  const LearningRateSchedule rate({.peak = 0.2}, 100);
  EXPECT_DOUBLE_EQ(rate.minimum(), 0.02);
  EXPECT_EQ(rate.warmup_steps(), 5);
  EXPECT_EQ(LearningRateSchedule({}, 19).warmup_steps(), 0);
}

TEST(LearningRateSchedule, WarmupMayTakeAllSteps) {
  const LearningRateSchedule rate({.peak = 1, .minimum = 0, .warmup_steps = 4}, 4);
  EXPECT_DOUBLE_EQ(rate.at(3), 1);
  EXPECT_DOUBLE_EQ(rate.at(4), 1);
}

TEST(LearningRateSchedule, RefusesValuesOutOfRangeByName) {
  EXPECT_THAT(message_of({.peak = 0}, 10), HasSubstr("learning_rate: must be a positive number, but is 0"));
  EXPECT_THAT(message_of({.peak = std::nan("")}, 10), HasSubstr("learning_rate"));
  EXPECT_THAT(message_of({.peak = std::numeric_limits<double>::infinity()}, 10), HasSubstr("learning_rate"));
  EXPECT_THAT(message_of({.peak = 1, .minimum = 2}, 10), HasSubstr("min_learning_rate: must be in 0..learning_rate"));
  EXPECT_THAT(message_of({.minimum = -1}, 10), HasSubstr("min_learning_rate"));
  EXPECT_THAT(message_of({.warmup_steps = 11}, 10), HasSubstr("warmup_steps: must be in 0..steps (10), but is 11"));
  EXPECT_THAT(message_of({}, 0), HasSubstr("steps: must be at least 1, but is 0"));
}

TEST(LearningRateSchedule, RefusesAMinimumThatAConstantScheduleIgnores) {
  EXPECT_THAT(message_of({.minimum = 1e-4, .schedule = ScheduleKind::kConstant}, 10), HasSubstr("has no effect"));
}

TEST(LearningRateSchedule, RefusesStepsOfADecayThatHaveNoEffectOrNoRoom) {
  const auto complaint_of = [](ScheduleKind schedule, int64_t decay) {
    return message_of({.warmup_steps = 2, .decay_steps = decay, .schedule = schedule}, 10);
  };
  EXPECT_EQ(complaint_of(ScheduleKind::kCosine, 5),
            "decay_steps: has no effect with the schedule cosine; it is for wsd");
  EXPECT_THAT(complaint_of(ScheduleKind::kLinear, 5), HasSubstr("has no effect with the schedule linear"));
  EXPECT_THAT(complaint_of(ScheduleKind::kConstant, 5), HasSubstr("has no effect with the schedule constant"));
  EXPECT_EQ(complaint_of(ScheduleKind::kWsd, 9), "decay_steps: must be in 1..steps - warmup_steps (8), but is 9");
  EXPECT_EQ(complaint_of(ScheduleKind::kWsd, 0), "decay_steps: must be in 1..steps - warmup_steps (8), but is 0");
  EXPECT_EQ(complaint_of(ScheduleKind::kWsd, 8), "nothing was thrown");
}

TEST(ScheduleKind, IsKnownByName) {
  EXPECT_EQ(parse_schedule_kind("cosine"), ScheduleKind::kCosine);
  EXPECT_EQ(parse_schedule_kind("constant"), ScheduleKind::kConstant);
  EXPECT_EQ(parse_schedule_kind("linear"), ScheduleKind::kLinear);
  EXPECT_EQ(parse_schedule_kind("wsd"), ScheduleKind::kWsd);
  EXPECT_EQ(to_string(ScheduleKind::kCosine), "cosine");
  EXPECT_EQ(to_string(ScheduleKind::kConstant), "constant");
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { parse_schedule_kind("step"); }),
            "schedule: unknown name 'step'; known: constant, cosine, linear, wsd");
  EXPECT_THROW(to_string(static_cast<ScheduleKind>(4)), c10::ValueError);
}

TEST(SetLearningRate, SetsItForAllParameterGroups) {
  const std::vector<at::Tensor> first{at::zeros({1}).requires_grad_()};
  const std::vector<at::Tensor> second{at::zeros({2}).requires_grad_()};
  torch::optim::SGD optimizer({torch::optim::OptimizerParamGroup(first), torch::optim::OptimizerParamGroup(second)},
                              torch::optim::SGDOptions(1));
  set_learning_rate(optimizer, 0.25);
  for (const auto& group : optimizer.param_groups()) {
    EXPECT_EQ(group.options().get_lr(), 0.25);
  }
}

}  // namespace
}  // namespace narrowcast
