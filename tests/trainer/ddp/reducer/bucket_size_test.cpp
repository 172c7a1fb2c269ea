#include "trainer/ddp/reducer/bucket_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/ddp_options.h>
#include "hooks/table/auto_choice.h"
#include "hooks/table/exchange_cost.h"

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(BucketSizes, AreThoseBelowAllGradientsAndWhatHoldsThese) {
  EXPECT_THAT(bucket_sizes(0), ElementsAre(1));
  EXPECT_THAT(bucket_sizes(kMiB), ElementsAre(1));
  EXPECT_THAT(bucket_sizes(kMiB + 1), ElementsAre(1, 2));
  EXPECT_THAT(bucket_sizes(5 * kMiB), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(bucket_sizes(25 * kMiB), ElementsAre(1, 2, 3, 6, 12, 25));
  EXPECT_THAT(bucket_sizes(42 * kMiB + 1), ElementsAre(1, 2, 3, 6, 12, 25, 43));
}

TEST(BucketSizes, EndWithThatOfDdpOptionsByWhichAutoJudgesToo) {
  const int64_t usual = DdpOptions().bucket_bytes_cap();
  const std::vector<double> sizes = bucket_sizes(2 * usual);
  EXPECT_EQ(sizes[sizes.size() - 2] * kBytesOfMib, usual);
  EXPECT_EQ(hooks::kLargeNumel * static_cast<int64_t>(sizeof(float)), usual);
}

// One gradient per second, the first at 0; an exchange takes 1 s and another second per 100 elements.
const BackwardPass kThreeGradients = {.numel = {100, 100, 100}, .ready_seconds = {0, 1, 2}};
const hooks::ExchangeCost kCost = {.seconds = 1, .seconds_per_element = 0.01};

TEST(SecondsUntilAveraged, OneExchangeAfterTheOther) {
  EXPECT_EQ(kThreeGradients.seconds(), 2);
  EXPECT_EQ(seconds_until_averaged({{0, 1, 2}}, kThreeGradients, kCost), 2 + (1 + 3));
  // 0 to 2 s, 2 to 4 s although ready since 1 s, 4 to 6 s.
  EXPECT_EQ(seconds_until_averaged({{0}, {1}, {2}}, kThreeGradients, kCost), 6);
  EXPECT_EQ(seconds_until_averaged({{0}, {1, 2}}, kThreeGradients, kCost), 2 + (1 + 2));
  EXPECT_EQ(seconds_until_averaged({{0, 1}, {2}}, kThreeGradients, kCost), (1 + 1 + 2) + (1 + 1));
}

TEST(SecondsUntilAveraged, ABucketWaitsForItsLastGradientAndThoseBeforeIt) {
  const hooks::ExchangeCost fast = {.seconds = 0.25, .seconds_per_element = 0};
  EXPECT_EQ(seconds_until_averaged({{0}, {1}, {2}}, kThreeGradients, fast), 2.25) << "the network waits";
  EXPECT_EQ(seconds_until_averaged({{2}, {1}, {0}}, kThreeGradients, fast), 2 + 3 * 0.25) << "in the order of buckets";
}

TEST(ChooseBucketSize, TakesTheOneThatIsDoneFirst) {
  const std::vector<SizedBuckets> candidates = {{1, {{0}, {1}, {2}}}, {2, {{0}, {1, 2}}}, {3, {{0, 1, 2}}}};
  const BucketChoice choice = choose_bucket_size(candidates, kThreeGradients, kCost);
  EXPECT_EQ(choice.backward_seconds, 2);
  EXPECT_EQ(choice.chosen, 1);
  EXPECT_EQ(choice.size().cap_mb, 2);
  EXPECT_EQ(choice.size().buckets, 2);
  ASSERT_THAT(choice.sizes, SizeIs(3));
  EXPECT_EQ(choice.sizes[0].seconds_left, 4);
  EXPECT_EQ(choice.sizes[1].seconds_left, 3);
  EXPECT_EQ(choice.sizes[2].seconds_left, 4);
}

// Two gradients, of `early` elements and of one element, the second 100 s later; an element takes a second. Two buckets
// take 101 s, one takes 101 + early.
BucketChoice choice_between_two(int64_t early) {
  const BackwardPass pass = {.numel = {early, 1}, .ready_seconds = {0, 100}};
  return choose_bucket_size({{1, {{0}, {1}}}, {2, {{0, 1}}}}, pass,
                            hooks::ExchangeCost{.seconds = 0, .seconds_per_element = 1});
}

TEST(ChooseBucketSize, TakesTheLargerWhereItIsAtMostOnePercentLater) {
  EXPECT_EQ(choice_between_two(0).size().cap_mb, 2) << "the same";
  EXPECT_EQ(choice_between_two(1).size().cap_mb, 2) << "102 <= 1.01 * 101 = 102.01";
  EXPECT_EQ(choice_between_two(2).size().cap_mb, 1) << "103 > 102.01";
}

TEST(ChooseBucketSize, SparesLatencyWhereNothingElseTakesTime) {
  const hooks::ExchangeCost latency = {.seconds = 5, .seconds_per_element = 0};
  const std::vector<SizedBuckets> candidates = {{1, {{0}, {1}, {2}}}, {3, {{0, 1, 2}}}};
  EXPECT_EQ(choose_bucket_size(candidates, kThreeGradients, latency).size().cap_mb, 3) << "7 s instead of 15";
  EXPECT_EQ(choose_bucket_size(candidates, kThreeGradients, hooks::ExchangeCost{}).size().cap_mb, 3)
      << "nothing is sent";
}

}  // namespace
}  // namespace narrowcast
