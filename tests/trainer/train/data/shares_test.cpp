#include "trainer/train/data/shares.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/error_message.h"

namespace narrowcast::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseShares, ReadsWhatToStringWrites) {
  for (const std::string text : {"equal", "auto", "24,8", "5"}) {
    EXPECT_EQ(to_string(parse_shares(text)), text);
  }
  EXPECT_TRUE(parse_shares("equal").are_equal());
  EXPECT_EQ(parse_shares("auto").kind, Shares::Kind::kAuto);
  EXPECT_THAT(parse_shares("24,8").samples, ElementsAre(24, 8));
}

TEST(ParseShares, NamesAWrongValue) {
  const auto complaint = [](const std::string& text) {
    return testing::error_message<c10::ValueError>([&] { parse_shares(text); });
  };
  for (const std::string text : {"", "fast", "24,", "24;8", "1.5,2", "24,x", "99999999999999999999,1"}) {
    EXPECT_EQ(complaint(text),
              "shares: must be equal, auto or a number of samples for each rank such as 24,8, but is '" + text + "'");
  }
  EXPECT_EQ(complaint("24,0"), "shares: each rank needs at least 1 sample, but one has 0 in '24,0'");
  EXPECT_EQ(complaint("-3,8"), "shares: each rank needs at least 1 sample, but one has -3 in '-3,8'");
}

TEST(CheckGivenShares, NamesTheListAndTheRank) {
  const auto complaint = [](const std::vector<int64_t>& shares, int64_t accumulation_steps = 1) {
    return testing::error_message<c10::ValueError>([&] {
      check_given_shares(
          {.global_batch = 32, .world_size = 2, .accumulation_steps = accumulation_steps, .shares = shares});
    });
  };
  EXPECT_EQ(complaint({24, 8}), "nothing was thrown");
  EXPECT_EQ(complaint({24, 4, 4}), "shares: must have a number for each of the 2 ranks, but has 3: 24,4,4");
  EXPECT_EQ(complaint({24, 9}), "shares: must add up to batch_size, which is 32, but add up to more: 24,9");
  EXPECT_EQ(complaint({24, 7}), "shares: must add up to batch_size, which is 32, but add up to 31: 24,7");
  EXPECT_THAT(complaint({INT64_MAX, INT64_MAX}), HasSubstr("add up to more"));
  EXPECT_EQ(complaint({31, 1}, 2),
            "shares: each must be at least 2, a sample for each of accumulation_steps, but rank 1 has 1 in 31,1");
}

// Whatever the shares are, the parts of all ranks make the same batch, in the same order.
TEST(BatchPlan, UnequalPartsInRankOrderMakeTheGlobalOrder) {
  const SampleOrder order(101, 9);
  for (const std::vector<int64_t>& shares : std::vector<std::vector<int64_t>>{{24, 8}, {3, 29}, {10, 11, 11}}) {
    for (const int64_t accumulation_steps : {1, 2, 3}) {
      const auto world_size = std::ssize(shares);
      const BatchPlan plan(
          {.global_batch = 32, .world_size = world_size, .accumulation_steps = accumulation_steps, .shares = shares});
      EXPECT_FALSE(plan.is_even());
      int64_t position = 0;
      for (int64_t step = 0; step < 5; ++step) {
        double weights = 0;
        for (int64_t rank = 0; rank < world_size; ++rank) {
          int64_t of_rank = 0;
          for (int64_t micro_step = 0; micro_step < accumulation_steps; ++micro_step) {
            const std::vector<int64_t> samples = plan.samples(order, rank, step, micro_step);
            EXPECT_DOUBLE_EQ(plan.weight(rank, micro_step), static_cast<double>(samples.size()) / 32);
            EXPECT_GE(samples.size(), 1);
            for (const int64_t sample : samples) ASSERT_EQ(sample, order.at(position++));
            of_rank += std::ssize(samples);
            weights += plan.weight(rank, micro_step);
          }
          EXPECT_EQ(of_rank, shares[static_cast<size_t>(rank)]);
        }
        EXPECT_NEAR(weights, 1, 1e-12);
      }
    }
  }
}

TEST(BatchPlan, EqualGivenSharesAreEven) {
  EXPECT_TRUE(BatchPlan({.global_batch = 24, .world_size = 2, .accumulation_steps = 3, .shares = {12, 12}}).is_even());
  EXPECT_FALSE(BatchPlan({.global_batch = 24, .world_size = 2, .accumulation_steps = 5, .shares = {12, 12}}).is_even());
  EXPECT_EQ(BatchPlan({.global_batch = 5, .world_size = 2, .accumulation_steps = 2, .shares = {3, 2}}).micro_batch(),
            1);
}

TEST(SharesBySpeed, AreInProportionToTheSpeeds) {
  EXPECT_THAT(shares_by_speed(32, {1, 3}, 1), ElementsAre(24, 8));
  EXPECT_THAT(shares_by_speed(32, {0.001, 0.001, 0.001, 0.001}, 1), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(shares_by_speed(7, {1, 2, 4}, 1), ElementsAre(4, 2, 1));
  EXPECT_THAT(shares_by_speed(10, {1, 1, 1}, 1), ElementsAre(4, 3, 3)) << "the first of equal ranks gets the rest";
  EXPECT_THAT(shares_by_speed(10, {1, 1000}, 1), ElementsAre(9, 1));
  EXPECT_THAT(shares_by_speed(12, {1, 1000, 1000, 2}, 2), ElementsAre(5, 2, 2, 3))
      << "those with the least share it not";
}

TEST(SharesBySpeed, AddUpAndAreWithinOneSampleOfTheSpeeds) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> seconds(1e-5, 1e-3);
  for (int trial = 0; trial < 300; ++trial) {
    const size_t ranks = 1 + random() % 9;
    const int64_t batch = static_cast<int64_t>(ranks) * static_cast<int64_t>(1 + random() % 60);
    std::vector<double> times(ranks);
    double speed = 0;
    for (double& each : times) speed += 1 / (each = seconds(random));
    const std::vector<int64_t> shares = shares_by_speed(batch, times, 1);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), int64_t{0}), batch);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double ideal = static_cast<double>(batch) / times[rank] / speed;
      EXPECT_GE(shares[rank], 1);
      EXPECT_LE(static_cast<double>(shares[rank]), std::max(1.0, ideal + 1));
    }
    EXPECT_LE(seconds_of_slowest(shares, times),
              seconds_of_slowest(std::vector<int64_t>(ranks, batch / static_cast<int64_t>(ranks)), times) * 1.5);
  }
}

TEST(SharesBySpeed, RefusesABatchThatIsTooSmall) {
  EXPECT_EQ(testing::error_message<c10::ValueError>([] {
              shares_by_speed(5, {1, 1, 1}, 2);
            }),
            "shares: a batch of 5 cannot give 2 samples to each of 3 ranks");
}

}  // namespace
}  // namespace narrowcast::data
