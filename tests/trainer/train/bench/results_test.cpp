#include "trainer/train/bench/results.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/trainer/train/bench/small_results.h"
#include "trainer/train/bench/run_bench.h"

namespace narrowcast::bench {
namespace {

TEST(LinkText, SaysRateAndRoundTrip) {
  EXPECT_EQ(link_text({.gbit_per_second = 0.957, .message_bytes = 30'000'000, .round_trip_us = 81.6}),
            "Link: 0.96 Gbit/s from each rank to the next, all at once (messages of 30.0 MB); round trip 82 us.\n");
}

TEST(KernelTable, ComparesWithReading) {
  const KernelRates rates = {
      .memory_read = 20,
      .formats = {{WireFormat::kInt8B128, 18, 15}, {WireFormat::kFp8E4M3B32, 9, 10}},
  };
  EXPECT_EQ(kernel_table(rates),
            "Kernels, one thread, GB/s of float32; memory is read at 20.0 GB/s:\n"
            "format        encode  of reading  decode  of reading\n"
            "int8_b128       18.0         90%    15.0         75%\n"
            "fp8_e4m3_b32     9.0         45%    10.0         50%\n");
}

TEST(HookTable, HasALinePerHookAndCase) {
  HookTime small = four_of("int8", 0.5, 400);
  small.bucket_bytes = 64 << 10;
  const BenchResults results = {
      .given_gbit = 1,
      .hooks = {time_of("allreduce", 221.004, 26'214'400), time_of("bf16_compress", 110.5, 13'107'200), small}};
  EXPECT_EQ(hook_table(results),
            "hook           bucket  buckets      ms  x allreduce  x bf16_compress  sent per rank  of the link\n"
            "allreduce      25 MiB        1  221.00         1.00             0.50        26.2 MB          95%\n"
            "bf16_compress  25 MiB        1  110.50         2.00             1.00        13.1 MB          95%\n"
            "int8           64 KiB        4    0.50            -                -          400 B           1%\n");
}

TEST(HookTable, HasADashWithoutALink) {
  EXPECT_EQ(hook_table({.hooks = {time_of("allreduce", 1, 1)}}),
            "hook       bucket  buckets    ms  x allreduce  x bf16_compress  sent per rank  of the link\n"
            "allreduce  25 MiB        1  1.00         1.00                -            1 B            -\n");
}

TEST(Median, IsTheMiddleOfSortedValues) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({100, 4, 1, 2}), 3);
  EXPECT_THROW(median({}), c10::ValueError);
}

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

TEST(BenchJson, HoldsEverythingThatWasMeasured) {
  const BenchResults results = {.ranks = 2,
                                .link = LinkRate{.gbit_per_second = 0.9, .message_bytes = 64, .round_trip_us = 80},
                                .given_gbit = 1,
                                .kernels = KernelRates{.memory_read = 20, .formats = {{WireFormat::kInt8B128, 18, 15}}},
                                .hooks = {time_of("allreduce", 4, 100), time_of("int8", 1, 25)},
                                .payload_bytes_sent = 999};
  const nlohmann::json json = to_json({.version = "1.2", .iterations = 7, .warmup_iterations = 2}, results);
  EXPECT_EQ(json, nlohmann::json::parse(R"({
    "version": "1.2", "ranks": 2, "iterations": 7, "warmup_iterations": 2, "recommended_hook": "int8",
    "payload_bytes_sent": 999, "given_gbit_per_second": 1.0,
    "link": {"gbit_per_second": 0.9, "message_bytes": 64, "round_trip_us": 80.0},
    "kernels": {"memory_read_gb_per_second": 20.0,
                "formats": {"int8_b128": {"encode_gb_per_second": 18.0, "decode_gb_per_second": 15.0}}},
    "hooks": [
      {"hook": "allreduce", "bucket_bytes": 26214400, "buckets": 1, "median_ms": 4.0, "milliseconds": [4.0],
       "payload_bytes": 100},
      {"hook": "int8", "bucket_bytes": 26214400, "buckets": 1, "median_ms": 1.0, "milliseconds": [1.0],
       "payload_bytes": 25}]})"));
}

TEST(BenchJson, LeavesOutWhatWasNotMeasured) {
  const nlohmann::json json = to_json({}, {.hooks = {time_of("allreduce", 4, 100)}});
  EXPECT_FALSE(json.contains("link"));
  EXPECT_FALSE(json.contains("given_gbit_per_second"));
  EXPECT_FALSE(json.contains("kernels"));
  EXPECT_EQ(json.at("recommended_hook"), "");
}

}  // namespace
}  // namespace narrowcast::bench
