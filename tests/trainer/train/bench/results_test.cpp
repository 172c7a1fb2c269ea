#include "trainer/train/bench/results.h"

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

// Four buckets of 25 MiB in 100 ms.
TEST(Bandwidths, AreThoseOfNcclTests) {
  const HookTime time = four_of("int8", 100, 39'000'000);
  EXPECT_EQ(elements_of(time.bucket_bytes), 6'553'600);
  EXPECT_DOUBLE_EQ(averaged_bytes(time), 104'857'600);
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(time), 1.048576);
  EXPECT_DOUBLE_EQ(bus_bandwidth(time, 2), 1.048576);
  EXPECT_DOUBLE_EQ(bus_bandwidth(time, 4), 1.048576 * 1.5);
  EXPECT_DOUBLE_EQ(wire_bandwidth(time), 0.39);
}

HookTime sized(const std::string& hook, int64_t bucket_bytes, double median_ms) {
  HookTime time = time_of(hook, median_ms, 0);
  time.bucket_bytes = bucket_bytes;
  return time;
}

TEST(FitHooks, SeparatesLatencyFromBandwidth) {
  // 0.2 ms and 2 GB/s; 0.5 ms and 8 GB/s.
  const auto fits = fit_hooks(
      {.hooks = {sized("allreduce", 2'000'000, 1.2), sized("int8", 2'000'000, 0.75), sized("allreduce", 4'000'000, 2.2),
                 sized("int8", 4'000'000, 1.0), sized("allreduce", 8'000'000, 4.2), sized("int8", 8'000'000, 1.5)}});
  ASSERT_EQ(fits.size(), 2U);
  EXPECT_EQ(fits[0].hook, "allreduce");
  EXPECT_EQ(fits[0].sizes, 3);
  EXPECT_NEAR(fits[0].latency_us, 200, 1e-6);
  EXPECT_NEAR(*fits[0].gb_per_second, 2, 1e-9);
  EXPECT_NEAR(fits[0].worst_residual, 0, 1e-9);
  EXPECT_EQ(fits[1].hook, "int8");
  EXPECT_NEAR(fits[1].latency_us, 500, 1e-6);
  EXPECT_NEAR(*fits[1].gb_per_second, 8, 1e-9);
}

// Sizes with other numbers of buckets in flight are on another line.
TEST(FitHooks, NeedsThreeSizesOfOneNumberOfBuckets) {
  BenchResults results = {.hooks = {sized("allreduce", 1000, 1), sized("allreduce", 2000, 2)}};
  results.hooks.push_back(sized("allreduce", 3000, 3));
  results.hooks.back().buckets = 4;
  EXPECT_TRUE(fit_hooks(results).empty());
  results.hooks.back().buckets = 1;
  EXPECT_EQ(fit_hooks(results).size(), 1U);
}

TEST(FitHooks, HasNoBandwidthWhereLargerIsNotSlower) {
  const auto fits =
      fit_hooks({.hooks = {sized("noop", 1000, 0.3), sized("noop", 2000, 0.2), sized("noop", 4000, 0.1)}});
  ASSERT_EQ(fits.size(), 1U);
  EXPECT_EQ(fits[0].gb_per_second, std::nullopt);
}

}  // namespace
}  // namespace narrowcast::bench
