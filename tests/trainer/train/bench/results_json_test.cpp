#include "trainer/train/bench/results_json.h"

#include <gtest/gtest.h>

#include "tests/trainer/train/bench/small_results.h"

namespace narrowcast::bench {
namespace {

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
