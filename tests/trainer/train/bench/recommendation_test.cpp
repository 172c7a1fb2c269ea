#include "trainer/train/bench/recommendation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/train/bench/small_results.h"

namespace narrowcast::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;

std::string text_of(const std::vector<HookTime>& hooks) {
  return recommendation_text(recommend(BenchResults{.hooks = hooks}));
}

// Six iterations that vary around the median by up to `spread`, in opposite order if `inverted`.
HookTime noisy(const std::string& hook, double median_ms, double spread, bool inverted) {
  std::vector<double> milliseconds;
  for (int i = 0; i < 6; ++i) {
    const double factor = 1 + spread * (0.5 + 0.1 * i);
    milliseconds.push_back((i % 2 == 0) == inverted ? median_ms / factor : median_ms * factor);
  }
  return iterations_of(hook, milliseconds, 25);
}

TEST(Recommendation, NamesTheFastestHookAndItsGain) {
  EXPECT_EQ(
      text_of({time_of("allreduce", 200, 100), time_of("bf16_compress", 100, 50), time_of("int8", 50, 25)}),
      "Recommendation: --hook=int8. It is 4.00 times as fast as allreduce (4.00 to 4.00 at 95%) and 2.00 times as "
      "fast as bf16_compress; see docs/reference/hooks.md for its accuracy.\n");
}

TEST(Recommendation, TakesTheGeometricMeanOfAllCases) {
  EXPECT_EQ(
      text_of({time_of("allreduce", 200, 100), time_of("int8", 100, 25), four_of("allreduce", 800, 400),
               four_of("int8", 100, 100)}),
      "Recommendation: --hook=int8. It is 4.00 times as fast as allreduce (4.00 to 4.00 at 95%; 2.00 to 8.00 in 2 "
      "cases); see docs/reference/hooks.md for its accuracy.\n");
}

TEST(Recommendation, PrefersMoreBytesWhereTheyCostNoTime) {
  const Recommendation recommendation =
      recommend({.hooks = {time_of("allreduce", 200, 100), time_of("int4", 99, 12), time_of("int8", 100, 25),
                           time_of("fp8", 100, 25), time_of("bf16_compress", 120, 50)}});
  EXPECT_EQ(recommendation.verdict, Verdict::kHookPays);
  EXPECT_EQ(recommendation.fastest, "int4");
  EXPECT_EQ(recommendation.hook, "int8");
  EXPECT_DOUBLE_EQ(recommendation.speed_up, 2);
  EXPECT_DOUBLE_EQ(*recommendation.against_bf16, 1.2);
}

TEST(Recommendation, SaysWhenNoHookPays) {
  const std::vector<HookTime> hooks = {time_of("allreduce", 100, 100), time_of("int8", 96, 25),
                                       time_of("bf16_compress", 110, 50)};
  EXPECT_EQ(text_of(hooks),
            "Recommendation: no hook is worthwhile here, use --hook=none. The fastest, int8, is 1.04 times as fast as "
            "allreduce "
            "(1.04 to 1.04 at 95%).\n");
  EXPECT_EQ(recommend({.hooks = hooks}).hook, "");
  EXPECT_EQ(recommend({.hooks = hooks}).verdict, Verdict::kNoHookPays);
}

// A hook that is just too slow to pay is not chosen because it sends fewer bytes.
TEST(Recommendation, NeverNamesAHookThatDoesNotPay) {
  EXPECT_EQ(
      recommend({.hooks = {time_of("allreduce", 100, 100), time_of("int8", 94, 25), time_of("bf16_compress", 97, 50)}})
          .hook,
      "int8");
}

TEST(Recommendation, NeverNamesNoop) {
  EXPECT_EQ(recommend({.hooks = {time_of("allreduce", 100, 100), time_of("noop", 1, 0), time_of("int8", 50, 25)}}).hook,
            "int8");
  EXPECT_EQ(text_of({time_of("allreduce", 100, 100), time_of("noop", 1, 0)}),
            "Recommendation: none, only allreduce was measured.\n");
}

// Five iterations are in such an order by chance once in sixteen times, even if they look clear.
TEST(Recommendation, NeedsSixIterations) {
  const std::vector<HookTime> hooks = {iterations_of("allreduce", {100, 100, 100, 100, 100}, 100),
                                       iterations_of("int6", {20, 20, 20, 20, 20}, 20)};
  EXPECT_EQ(text_of(hooks), "Recommendation: none, 5 iterations measured, but a confidence of 95% needs at least 6.\n");
  EXPECT_EQ(recommend({.hooks = hooks}).verdict, Verdict::kTooFewIterations);
  EXPECT_EQ(recommend({.hooks = hooks}).hook, "");
}

TEST(Recommendation, IsNoneWhereTheSpreadHidesTheOrder) {
  const BenchResults results = {
      .hooks = {time_of("allreduce", 400, 100), noisy("int8", 100, 0.3, false), noisy("int6", 99, 0.3, true)}};
  const Recommendation recommendation = recommend(results);
  EXPECT_EQ(recommendation.verdict, Verdict::kUndecided);
  EXPECT_EQ(recommendation.hook, "");
  const std::string other = recommendation.leader == "int6" ? "int8" : "int6";
  EXPECT_EQ(recommendation.leader, recommendation.fastest);
  EXPECT_THAT(recommendation.undecided, ElementsAre(Field(&Rival::hook, other)));
  EXPECT_LT(recommendation.undecided[0].speed_up.lower, 1 / 1.05);
  EXPECT_THAT(recommendation_text(recommendation),
              ::testing::StartsWith("Recommendation: none, the differences between the hooks are not significant. " +
                                    recommendation.leader +
                                    " looks best, but its times vary too much to distinguish it from " + other + " ("));
}

// A disturbance of all hooks in an iteration does not hide which hook is faster.
TEST(Recommendation, ComparesHooksWithinEachIteration) {
  const std::vector<double> disturbances = {1, 7, 2, 5, 1, 3, 9, 2};
  std::vector<double> slow;
  std::vector<double> fast;
  for (const double disturbance : disturbances) {
    slow.push_back(100 * disturbance);
    fast.push_back(80 * disturbance);
  }
  const BenchResults results = {.hooks = {iterations_of("allreduce", slow, 100), iterations_of("int8", fast, 25)}};
  EXPECT_EQ(recommend(results).hook, "int8");
  const auto interval = paired_interval(results, "int8", "allreduce");
  EXPECT_DOUBLE_EQ(interval->lower, 1.25);
  EXPECT_DOUBLE_EQ(interval->upper, 1.25);
}

// That no hook pays is a recommendation as well, and may be a guess.
TEST(Recommendation, IsUndecidedWhereAHookMayPay) {
  const Recommendation recommendation =
      recommend({.hooks = {noisy("allreduce", 100, 0.3, false), noisy("int8", 100, 0.3, true)}});
  EXPECT_EQ(recommendation.verdict, Verdict::kUndecided);
  EXPECT_EQ(recommendation.undecided.size(), 1U);
}

TEST(Recommendation, TakesTheFastestWhereAWiderHookMayBeBehind) {
  const std::vector<double> int8 = {99, 103, 107, 103, 103, 107};  // sometimes more than 5% slower
  const BenchResults results = {
      .hooks = {time_of("allreduce", 200, 100), time_of("int4", 100, 12), iterations_of("int8", int8, 25)}};
  EXPECT_EQ(recommend(results).hook, "int4");
}

TEST(PairedInterval, IsOfTheMeanOverCases) {
  std::vector<HookTime> hooks = {time_of("allreduce", 200, 100), time_of("int8", 100, 25),
                                 four_of("allreduce", 800, 400), four_of("int8", 100, 100)};
  EXPECT_NEAR(paired_interval({.hooks = hooks}, "int8", "allreduce")->lower, 4, 1e-12);
  EXPECT_NEAR(paired_interval({.hooks = hooks}, "allreduce", "int8")->upper, 0.25, 1e-12);
  EXPECT_FALSE(paired_interval({.hooks = hooks}, "int8", "int4"));
}

}  // namespace
}  // namespace narrowcast::bench
