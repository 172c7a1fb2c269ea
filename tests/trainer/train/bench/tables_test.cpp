#include "trainer/train/bench/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/trainer/train/bench/small_results.h"
#include "trainer/train/bench/run_bench.h"

namespace narrowcast::bench {
namespace {

using ::testing::EndsWith;

std::string without_first_line(const std::string& text) { return text.substr(text.find('\n') + 1); }

size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  size_t widest = 0;
  for (std::string line; std::getline(lines, line);) {
    widest = std::max(widest, line.size());
  }
  return widest;
}

TEST(LinkText, SaysRateAndRoundTrip) {
  EXPECT_EQ(link_text({.gbit_per_second = 0.957, .message_bytes = 30'000'000, .round_trip_us = 81.6}),
            "Link: 0.96 Gbit/s from each rank to the next, all at once (messages of 30.0 MB); round trip 82 us.\n");
}

TEST(RanksText, SaysWhereTheyAre) {
  EXPECT_EQ(ranks_text({.ranks = 4, .ranks_per_node = {4}}), "Ranks: 4 on one node; one level.\n");
  EXPECT_EQ(ranks_text({.ranks = 4, .ranks_per_node = {1, 1, 1, 1}}), "Ranks: 4 on 4 nodes, 1 on each.\n");
  EXPECT_EQ(ranks_text({.ranks = 4, .ranks_per_node = {2, 2}, .levels = 2}),
            "Ranks: 4 on 2 nodes, 2 on each; two levels.\n");
  EXPECT_EQ(ranks_text({.ranks = 5, .ranks_per_node = {2, 3}, .levels = 2}),
            "Ranks: 5 on 2 nodes, 2 to 3 on each; two levels.\n");
  EXPECT_EQ(ranks_text({.ranks = 2, .device = c10::DeviceType::CUDA, .ranks_per_node = {2}}),
            "Ranks: 2 on one node; one level; buckets on GPUs.\n");
  EXPECT_EQ(ranks_text({.ranks = 2, .network = "simulated, 1 Gbit/s", .ranks_per_node = {1, 1}}),
            "Ranks: 2 on 2 nodes, 1 on each; network: simulated, 1 Gbit/s.\n");
  EXPECT_EQ(ranks_text({.ranks = 2, .ranks_per_node = {1, 1}, .connections = "4 (auto: why)"}),
            "Ranks: 2 on 2 nodes, 1 on each; connections between nodes: 4 (auto: why).\n");
}

TEST(OneNodeText, SaysWhatIsMeasuredInstead) {
  const std::string network =
      ". To measure a network, use several machines, narrowcast-run --simulate_gbit=1, or --node_size=1 on one "
      "machine.\n";
  EXPECT_EQ(one_node_text({.ranks = 4, .ranks_per_node = {4}, .levels = 2}),
            "One node: this measures its memory, and nothing is sent in wire formats" + network);
  EXPECT_EQ(one_node_text({.ranks = 4, .ranks_per_node = {4}}),
            "One node: this measures its loopback interface" + network);
  EXPECT_EQ(one_node_text({.ranks = 4, .device = c10::DeviceType::CUDA, .ranks_per_node = {4}}),
            "One node: this measures the connections between its GPUs" + network);
  EXPECT_EQ(one_node_text({.ranks = 4, .ranks_per_node = {2, 2}}), "");
}

TEST(KernelTable, ComparesWithReading) {
  const KernelRates rates = {
      .memory = 20,
      .formats = {{WireFormat::kInt8B128, 18, 15}, {WireFormat::kFp8E4M3B32, 9, 10}},
  };
  EXPECT_EQ(kernel_table(rates),
            "Kernels, one thread, GB/s of float32; memory is read at 20.0 GB/s:\n"
            "format        encode  of reading  decode  of reading\n"
            "int8_b128       18.0         90%    15.0         75%\n"
            "fp8_e4m3_b32     9.0         45%    10.0         50%\n");
}

// A block of int8_b128 is 512 bytes of float32 and a message of 130 bytes. A copy counts bytes read and bytes written.
TEST(KernelTable, ComparesWithACopyOnAGpu) {
  const KernelRates rates = {
      .device = c10::DeviceType::CUDA, .memory = 4000, .formats = {{WireFormat::kInt8B128, 2000, 3000}}};
  EXPECT_DOUBLE_EQ(share_of_memory(rates, WireFormat::kInt8B128, 2000), 0.5 * (512 + 130) / 512);
  EXPECT_EQ(kernel_table(rates),
            "Kernels, rank 0's GPU, GB/s of float32; a copy reads and writes 4000.0 GB/s:\n"
            "format     encode  of copying  decode  of copying\n"
            "int8_b128  2000.0         63%  3000.0         94%\n");
}

TEST(DecisionLines, AreThereForHooksThatChoose) {
  HookTime chooses = time_of("auto", 1, 25'000);
  chooses.decision = "int8 from 64 KiB on";
  const BenchResults results = {.ranks = 2, .hooks = {time_of("allreduce", 4, 100'000), chooses}};
  EXPECT_EQ(decision_lines(results), "auto, 1 x 26214400 bytes: int8 from 64 KiB on\n");
  EXPECT_EQ(to_json({}, results)["hooks"][1]["decision"], "int8 from 64 KiB on");
  EXPECT_FALSE(to_json({}, results)["hooks"][0].contains("decision"));
}

TEST(HookTable, HasALinePerHookAndCase) {
  HookTime small = four_of("int8", 0.5, 400);
  small.bucket_bytes = 64 << 10;
  const BenchResults results = {.ranks = 4,
                                .given_gbit = 1,
                                .hooks = {iterations_of("allreduce", {221.004, 219, 300}, 26'214'400),
                                          time_of("bf16_compress", 110.5, 13'107'200), small}};
  EXPECT_EQ(without_first_line(hook_table(results)),
            "hook              bytes  elements  buckets  min ms  median ms  p99 ms  x allreduce  x bf16  algbw  busbw  "
            "  wire  of link  sent/rank  sent/node\n"
            "allreduce      26214400   6553600        1   219.0      221.0   300.0         1.00   0.500  0.119  0.178  "
            " 0.119      95%    26.2 MB    52.4 MB\n"
            "bf16_compress  26214400   6553600        1   110.5      110.5   110.5         2.00    1.00  0.237  0.356  "
            " 0.119      95%    13.1 MB    26.2 MB\n"
            "\n"
            "int8              65536     16384        4   0.500      0.500   0.500            -       -  0.524  0.786  "
            "0.0008       1%      400 B      800 B\n");
}

TEST(HookTable, HasADashWithoutALink) {
  EXPECT_THAT(hook_table({.ranks = 2, .hooks = {time_of("noop", 1, 0)}}),
              EndsWith("  1.00            -       -  26.21  26.21     0        -        0 B        0 B\n"));
}

TEST(ExactnessTable, HasALinePerHookAndSize) {
  EXPECT_EQ(without_first_line(exactness_table(
                {.exactness = {{"int8", 4000, 3.456e-5, 0, true}, {"noop", 26'214'400, 2.01, 6'553'000, false}}})),
            "hook     bytes  elements  squared relative error  outside tolerance  replicas\n"
            "int8      4000      1000                3.46e-05                  0  equal\n"
            "\n"
            "noop  26214400   6553600                2.01e+00            6553000  DIFFER\n");
}

HookTime sized_time(const std::string& hook, int64_t bucket_bytes, double median_ms) {
  HookTime time = time_of(hook, median_ms, bucket_bytes);
  time.bucket_bytes = bucket_bytes;
  return time;
}

TEST(FitTable, HasALinePerFit) {
  EXPECT_EQ(fit_table({.hooks = {time_of("allreduce", 1, 1)}}), "");
  const BenchResults results = {.hooks = {sized_time("allreduce", 2'000'000, 1.2),
                                          sized_time("allreduce", 4'000'000, 2.2),
                                          sized_time("allreduce", 8'000'000, 4.2)}};
  EXPECT_EQ(without_first_line(fit_table(results)),
            "hook       buckets  sizes  latency us  GB/s  off by up to\n"
            "allreduce        1      3         200  2.00            0%\n");
}

// The largest numbers that can be configured, with slow results.
TEST(Tables, FitInto160Columns) {
  HookTime time = iterations_of("quantize_per_channel", {123'456.7, 12'345.6, 543'210.9}, 6'442'450'944);
  time.bucket_bytes = kMostBucketBytes;
  time.buckets = 256;
  HookTime reference = time;
  reference.hook = "allreduce";
  const BenchResults results = {.ranks = 16,
                                .given_gbit = 100,
                                .hooks = {reference, time},
                                .exactness = {{time.hook, kMostBucketBytes, 1.5e-5, kMostBucketBytes / 4, false}}};
  EXPECT_LE(widest_line(hook_table(results)), 160U);
  EXPECT_LE(widest_line(exactness_table(results)), 160U);
}

}  // namespace
}  // namespace narrowcast::bench
