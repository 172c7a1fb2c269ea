#include "trainer/train/bench/results.h"

#include <gtest/gtest.h>

#include "tests/trainer/train/bench/small_results.h"
#include "trainer/train/bench/run_bench.h"

namespace narrowcast::bench {
namespace {

TEST(BenchJson, HoldsEverythingThatWasMeasured) {
  const BenchResults results = {.ranks = 2,
                                .network = "shared",
                                .ranks_per_node = {1, 1},
                                .levels = 1,
                                .connections = "4",
                                .why_one_level = "rank 0: no",
                                .link = LinkRate{.gbit_per_second = 0.9, .message_bytes = 64, .round_trip_us = 80},
                                .given_gbit = 1,
                                .kernels = KernelRates{.memory = 20, .formats = {{WireFormat::kInt8B128, 18, 15}}},
                                .hooks = {time_of("allreduce", 4, 100'000), time_of("int8", 1, 25'000)},
                                .exactness = {{"int8", 4000, 0.25, 3, true}},
                                .payload_bytes_sent = 999,
                                .measuring_bytes_sent = 99};
  const nlohmann::json json = to_json({.version = "1.2", .iterations = 6, .warmup_iterations = 2}, results);
  EXPECT_EQ(json, nlohmann::json::parse(R"({
    "version": "1.2", "ranks": 2, "network": "shared", "device": "cpu", "nodes": {"count": 2, "ranks_per_node": [1, 1]},
    "levels": 1, "connections": "4", "why_one_level": "rank 0: no",
    "iterations": 6, "warmup_iterations": 2, "reference": "allreduce", "recommended_hook": "int8",
    "recommendation": {"verdict": "hook_pays", "least_iterations": 6, "fastest_hook": "int8", "speed_up": 4.0,
                       "speed_up_interval": [4.0, 4.0]},
    "payload_bytes_sent": 999, "measuring_bytes_sent": 99, "given_gbit_per_second": 1.0,
    "link": {"gbit_per_second": 0.9, "message_bytes": 64, "round_trip_us": 80.0},
    "kernels": {"memory_read_gb_per_second": 20.0,
                "formats": {"int8_b128": {"encode_gb_per_second": 18.0, "decode_gb_per_second": 15.0}}},
    "hooks": [
      {"hook": "allreduce", "bucket_bytes": 26214400, "elements": 6553600, "buckets": 1,
       "min_ms": 4.0, "median_ms": 4.0, "p99_ms": 4.0, "milliseconds": [4.0, 4.0, 4.0, 4.0, 4.0, 4.0], "speed_up": 1.0,
       "algbw_gb_per_second": 6.5536, "busbw_gb_per_second": 6.5536, "wire_gb_per_second": 0.025,
       "share_of_link": 0.2, "payload_bytes": 100000, "payload_bytes_per_node": 200000},
      {"hook": "int8", "bucket_bytes": 26214400, "elements": 6553600, "buckets": 1,
       "min_ms": 1.0, "median_ms": 1.0, "p99_ms": 1.0, "milliseconds": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "speed_up": 4.0,
       "algbw_gb_per_second": 26.2144, "busbw_gb_per_second": 26.2144, "wire_gb_per_second": 0.025,
       "share_of_link": 0.2, "payload_bytes": 25000, "payload_bytes_per_node": 50000}],
    "exactness": [{"hook": "int8", "bucket_bytes": 4000, "elements": 1000, "squared_relative_error": 0.25,
                   "outside_tolerance": 3, "replicas_equal": true}],
    "fits": []})"))
      << json.dump(1);
}

TEST(BenchJson, TellsAGpuFromAProcessor) {
  const nlohmann::json json =
      to_json({}, {.ranks = 2,
                   .device = c10::DeviceType::CUDA,
                   .kernels = KernelRates{.device = c10::DeviceType::CUDA, .memory = 4000, .formats = {}}});
  EXPECT_EQ(json.at("device"), "cuda");
  EXPECT_EQ(json.at("kernels").at("memory_copy_gb_per_second"), 4000);
  EXPECT_FALSE(json.at("kernels").contains("memory_read_gb_per_second"));
}

TEST(BenchJson, LeavesOutWhatWasNotMeasured) {
  const nlohmann::json json = to_json({}, {.ranks = 2, .hooks = {time_of("allreduce", 4, 100)}});
  for (const char* const key :
       {"connections", "link", "given_gbit_per_second", "kernels", "exactness", "why_one_level"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
  EXPECT_EQ(json.at("recommended_hook"), "");
  EXPECT_EQ(json.at("recommendation"), nlohmann::json::parse(R"({"verdict": "nothing_to_compare",
                                                                 "least_iterations": 6})"));
  EXPECT_TRUE(json.at("hooks")[0].at("share_of_link").is_null());
  const nlohmann::json alone = to_json({}, {.ranks = 2, .hooks = {time_of("int8", 4, 100)}});
  EXPECT_TRUE(alone.at("hooks")[0].at("speed_up").is_null());
}

TEST(BenchJson, HasAFitOfThreeSizes) {
  BenchResults results = {.ranks = 2, .hooks = {time_of("noop", 3, 0), time_of("noop", 2, 0), time_of("noop", 1, 0)}};
  results.hooks[1].bucket_bytes *= 2;
  results.hooks[2].bucket_bytes *= 3;
  const nlohmann::json fit = to_json({}, results).at("fits").at(0);
  EXPECT_EQ(fit.at("hook"), "noop");
  EXPECT_EQ(fit.at("buckets"), 1);
  EXPECT_EQ(fit.at("sizes"), 3);
  EXPECT_NEAR(fit.at("latency_us"), 4000, 1e-6);
  EXPECT_TRUE(fit.at("gb_per_second").is_null());
  EXPECT_NEAR(fit.at("worst_residual"), 0, 1e-9);
}

TEST(BenchJson, SaysWhatIsUndecided) {
  const BenchResults results = {.ranks = 2,
                                .hooks = {iterations_of("allreduce", {1, 2, 1, 2, 1, 2, 1}, 100),
                                          iterations_of("int8", {2, 1, 2, 1, 2, 1, 1}, 25)}};
  const nlohmann::json recommendation = to_json({}, results).at("recommendation");
  EXPECT_EQ(recommendation.at("verdict"), "undecided");
  EXPECT_EQ(recommendation.at("leader"), "allreduce");
  EXPECT_EQ(recommendation.at("rivals"), nlohmann::json::parse(R"({"int8": [0.5, 2.0]})"));
}

}  // namespace
}  // namespace narrowcast::bench
