#include "trainer/train/bench/recommendation.h"

#include <gtest/gtest.h>

#include "tests/trainer/train/bench/small_results.h"

namespace narrowcast::bench {
namespace {

std::string text_of(const std::vector<HookTime>& hooks) {
  return recommendation_text(recommend(BenchResults{.hooks = hooks}));
}

TEST(Recommendation, NamesTheFastestHookAndItsGain) {
  EXPECT_EQ(text_of({time_of("allreduce", 200, 100), time_of("bf16_compress", 100, 50), time_of("int8", 50, 25)}),
            "Recommendation: --hook=int8. It is 4.00 times as fast as allreduce and 2.00 times as fast as "
            "bf16_compress; docs/hooks.md says how exact it is.\n");
}

TEST(Recommendation, TakesTheGeometricMeanOfAllCases) {
  EXPECT_EQ(text_of({time_of("allreduce", 200, 100), time_of("int8", 100, 25), four_of("allreduce", 800, 400),
                     four_of("int8", 100, 100)}),
            "Recommendation: --hook=int8. It is 4.00 times as fast as allreduce (2.00 to 8.00 in 2 cases); "
            "docs/hooks.md says how exact it is.\n");
}

TEST(Recommendation, PrefersMoreBytesWhereTheyCostNoTime) {
  const Recommendation recommendation =
      recommend({.hooks = {time_of("allreduce", 200, 100), time_of("int4", 99, 12), time_of("int8", 100, 25),
                           time_of("fp8", 100, 25), time_of("bf16_compress", 120, 50)}});
  EXPECT_EQ(recommendation.fastest, "int4");
  EXPECT_EQ(recommendation.hook, "int8");
  EXPECT_DOUBLE_EQ(recommendation.speed_up, 2);
  EXPECT_DOUBLE_EQ(*recommendation.against_bf16, 1.2);
}

TEST(Recommendation, SaysWhenNoHookPays) {
  EXPECT_EQ(text_of({time_of("allreduce", 100, 100), time_of("int8", 96, 25), time_of("bf16_compress", 110, 50)}),
            "Recommendation: no hook pays here, use --hook=none. The fastest, int8, is 1.04 times as fast as "
            "allreduce.\n");
  EXPECT_EQ(recommend({.hooks = {time_of("allreduce", 100, 100), time_of("int8", 96, 25)}}).hook, "");
}

// At the threshold, a hook that is only nearly fast enough is not chosen for its bytes.
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

}  // namespace
}  // namespace narrowcast::bench
