#include "trainer/train/data/batch_plan.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/error_message.h"

namespace narrowcast::data {
namespace {

using narrowcast::testing::error_message;

constexpr int64_t kGlobalBatch = 48;

class BatchPlanWorlds : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(BatchPlanWorlds, PartsInRankOrderMakeTheGlobalOrder) {
  const auto [world_size, accumulation_steps] = GetParam();
  const SampleOrder order(101, 9);  // steps straddle the epochs' borders
  const BatchPlan plan(
      {.global_batch = kGlobalBatch, .world_size = world_size, .accumulation_steps = accumulation_steps});
  int64_t position = 0;
  for (int64_t step = 0; step < 12; ++step) {
    for (int64_t rank = 0; rank < world_size; ++rank) {
      for (int64_t micro_step = 0; micro_step < accumulation_steps; ++micro_step) {
        const std::vector<int64_t> samples = plan.samples(order, rank, step, micro_step);
        ASSERT_EQ(samples.size(), kGlobalBatch / world_size / accumulation_steps);
        for (const int64_t sample : samples) {
          ASSERT_EQ(sample, order.at(position)) << "position " << position;
          ++position;
        }
      }
    }
  }
  EXPECT_EQ(position, 12 * kGlobalBatch);
}

INSTANTIATE_TEST_SUITE_P(Worlds, BatchPlanWorlds,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 6), ::testing::Values(1, 2, 4)));

TEST(BatchPlan, MicroBatchIsTheShareOfOneForwardPass) {
  EXPECT_EQ(BatchPlan({.global_batch = 24, .world_size = 3, .accumulation_steps = 4}).micro_batch(), 2);
  EXPECT_EQ(BatchPlan({.global_batch = 5}).micro_batch(), 5);
}

std::string plan_error(const BatchPlanOptions& options) {
  return error_message<c10::ValueError>([&] { BatchPlan plan(options); });
}

TEST(BatchPlan, IndivisibleBatchNamesAllThree) {
  EXPECT_EQ(plan_error({.global_batch = 10, .world_size = 2, .accumulation_steps = 3}),
            "global_batch must be divisible by world_size * accumulation_steps, but is 10 with world_size 2 and "
            "accumulation_steps 3");
  EXPECT_EQ(plan_error({.global_batch = 1, .world_size = 2}),
            "global_batch must be divisible by world_size * accumulation_steps, but is 1 with world_size 2 and "
            "accumulation_steps 1");
  EXPECT_NE(plan_error({.global_batch = 6, .world_size = INT64_MAX, .accumulation_steps = INT64_MAX}),
            "nothing was thrown");
}

TEST(BatchPlan, ValuesBelowOneAreNamed) {
  EXPECT_EQ(plan_error({.global_batch = 0}), "global_batch must be at least 1, but is 0");
  EXPECT_EQ(plan_error({.world_size = 0}), "world_size must be at least 1, but is 0");
  EXPECT_EQ(plan_error({.accumulation_steps = -2}), "accumulation_steps must be at least 1, but is -2");
}

TEST(BatchPlan, PlacesOutsideThePlanAreNamed) {
  const SampleOrder order(10, 1);
  const BatchPlan plan({.global_batch = 4, .world_size = 2, .accumulation_steps = 2});
  const auto error = [&](int64_t rank, int64_t step, int64_t micro_step) {
    return error_message<c10::ValueError>([&] { plan.samples(order, rank, step, micro_step); });
  };
  EXPECT_EQ(error(2, 0, 0), "rank must be in 0..1, but is 2");
  EXPECT_EQ(error(-1, 0, 0), "rank must be in 0..1, but is -1");
  EXPECT_EQ(error(0, -1, 0), "step must be at least 0, but is -1");
  EXPECT_EQ(error(0, 0, 2), "micro_step must be in 0..1, but is 2");
}

}  // namespace
}  // namespace narrowcast::data
