#include "trainer/train/bench/comparison.h"

#include <gtest/gtest.h>

#include "tests/trainer/train/bench/small_results.h"

namespace narrowcast::bench {
namespace {

TEST(SpeedUp, IsOfTheSameCase) {
  const BenchResults results = {.hooks = {time_of("allreduce", 8, 0), time_of("int8", 2, 0),
                                          four_of("allreduce", 30, 0), four_of("int8", 10, 0)}};
  EXPECT_EQ(speed_up(results, results.hooks[1], "allreduce"), 4);
  EXPECT_EQ(speed_up(results, results.hooks[3], "allreduce"), 3);
  EXPECT_EQ(speed_up(results, results.hooks[3], "bf16_compress"), std::nullopt);
}

TEST(ShareOfLink, ComparesWithTheGivenRateFirst) {
  const HookTime time = time_of("int8", 100, 10'000'000);  // 80 Mbit in 0.1 s: 0.8 Gbit/s
  BenchResults results;
  EXPECT_EQ(share_of_link(results, time), std::nullopt);
  results.link = LinkRate{.gbit_per_second = 1.6};
  EXPECT_DOUBLE_EQ(*share_of_link(results, time), 0.5);
  results.given_gbit = 1;
  EXPECT_DOUBLE_EQ(*share_of_link(results, time), 0.8);
}

}  // namespace
}  // namespace narrowcast::bench
