// narrowcast-bench under narrowcast-run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

ProgramEnd bench_on_two(const Words& flags) {
  return run_to_end(Words{kNarrowcastRun, "--noprefix", "--nproc_per_node=2", kNarrowcastBench} + flags, alone());
}

ProgramEnd bench_alone(const Words& flags) { return run_to_end(Words{kNarrowcastBench} + flags, alone()); }

void expect_one_line(const ProgramEnd& end, const std::string& text) {
  EXPECT_EQ(end.exit_code, 2) << end.errors;
  EXPECT_EQ(count_of("\n", end.errors), 1) << end.errors;
  EXPECT_THAT(end.errors, AllOf(StartsWith("narrowcast-bench: "), HasSubstr(text)));
  EXPECT_THAT(end.output, IsEmpty());
}

TEST(NarrowcastBench, MeasuresHooksAndWritesThem) {
  const TemporaryFolder folder;
  const ProgramEnd end =
      bench_on_two({"--hooks=bf16_compress,quantize_per_tensor", "--bucket_mib=0.0625,1", "--buckets=1,2",
                    "--iterations=3", "--nokernels", "--link_gbit=10", "--json=" + folder / "bench.json"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, StartsWith("One node: this measures its memory, and nothing is sent in wire formats. To "));
  EXPECT_EQ(count_of("Ranks: 2 on one node; two levels.\n", end.output), 1) << end.output;
  EXPECT_EQ(count_of("Link: ", end.output), 1) << end.output;
  EXPECT_EQ(count_of("\nquantize_per_tensor ", end.output), 4 + 2) << end.output;  // cases, and checked sizes
  EXPECT_THAT(end.output,
              HasSubstr("Recommendation: none, 3 iterations measured, but a confidence of 95% needs at least 6"));

  const auto json = nlohmann::json::parse(files::read_file(folder / "bench.json"));
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_EQ(json.at("nodes"), nlohmann::json::parse(R"({"count": 1, "ranks_per_node": [2]})"));
  EXPECT_EQ(json.at("given_gbit_per_second"), 10);
  EXPECT_FALSE(json.contains("kernels"));
  EXPECT_GT(json.at("link").at("gbit_per_second"), 0);
  ASSERT_EQ(json.at("hooks").size(), 12U);
  std::vector<std::string> hooks;
  for (const auto& entry : json.at("hooks")) {
    hooks.push_back(entry.at("hook"));
    EXPECT_EQ(entry.at("milliseconds").size(), 3U);
    EXPECT_GT(entry.at("min_ms"), 0);
    EXPECT_LE(entry.at("min_ms"), entry.at("median_ms"));
    EXPECT_LE(entry.at("median_ms"), entry.at("p99_ms"));
    EXPECT_EQ(entry.at("payload_bytes_per_node"), 2 * entry.at("payload_bytes").get<int64_t>());
  }
  EXPECT_THAT(std::vector<std::string>(hooks.begin(), hooks.begin() + 3),
              ElementsAre("allreduce", "bf16_compress", "quantize_per_tensor"));
  EXPECT_EQ(json.at("hooks").back().at("payload_bytes"), 2 * ((1 << 18) + 8));  // N codes, a scale and a zero point
  ASSERT_EQ(json.at("exactness").size(), 6U);
  for (const auto& entry : json.at("exactness")) {
    EXPECT_EQ(entry.at("outside_tolerance"), 0) << entry;
    EXPECT_TRUE(entry.at("replicas_equal")) << entry;
    EXPECT_GT(entry.at("squared_relative_error"), 0) << entry;
    EXPECT_LT(entry.at("squared_relative_error"), 1e-3) << entry;
  }
  EXPECT_EQ(folder.entries(), 1);
}

// One level, although the ranks share a node, over the link that is passed to the hook.
TEST(NarrowcastBench, SaysWhichRanksShareNodesAndTellsHooksOfTheLink) {
  const TemporaryFolder folder;
  const Words flags = {"--hooks=auto", "--levels=one",   "--bucket_mib=0.0625",
                       "--buckets=1",  "--iterations=1", "--nokernels",
                       "--nolink",     "--nocheck",      "--json=" + folder / "bench.json"};
  const auto json_with = [&](const Words& more) {
    const ProgramEnd end = bench_on_two(flags + more);
    EXPECT_EQ(end.exit_code, 0) << end.errors;
    EXPECT_THAT(end.output, HasSubstr("Ranks: 2 on one node; one level.\n"));
    return nlohmann::json::parse(files::read_file(folder / "bench.json"));
  };
  const nlohmann::json told = json_with({"--link_gbit=2", "--link_us=30"});
  EXPECT_EQ(told.at("nodes"), nlohmann::json::parse(R"({"count": 1, "ranks_per_node": [2]})"));
  EXPECT_EQ(told.at("levels"), 1);
  EXPECT_EQ(told.at("hooks")[1].at("payload_bytes_per_node"), 2 * told["hooks"][1]["payload_bytes"].get<int64_t>());
  EXPECT_THAT(told.at("hooks")[1].at("decision"), HasSubstr("link 2.0 Gbit/s and 30.0 us between nodes, given"));
  EXPECT_EQ(told.at("measuring_bytes_sent"), 0) << "nothing is left to measure";
  const nlohmann::json measured = json_with({});
  EXPECT_THAT(measured.at("hooks")[1].at("decision"), HasSubstr("between nodes, measured"));
  EXPECT_GT(measured.at("measuring_bytes_sent"), 1 << 20) << "the link's messages, and exchanges of each candidate";
  EXPECT_GT(measured.at("payload_bytes_sent"), measured["measuring_bytes_sent"].get<int64_t>());
}

TEST(NarrowcastBench, SweepsSizes) {
  const TemporaryFolder folder;
  const ProgramEnd end =
      bench_on_two({"--hooks=int8", "--min_bytes=4K", "--max_bytes=70K", "--factor=4", "--buckets=1", "--iterations=6",
                    "--nokernels", "--nolink", "--nocheck", "--json=" + folder / "bench.json"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, HasSubstr("\nFit: "));
  EXPECT_THAT(end.output, Not(HasSubstr("Exactness")));

  const auto json = nlohmann::json::parse(files::read_file(folder / "bench.json"));
  EXPECT_FALSE(json.contains("exactness"));
  std::vector<int64_t> sizes;
  for (const auto& entry : json.at("hooks")) {
    sizes.push_back(entry.at("bucket_bytes"));
  }
  EXPECT_THAT(sizes, ElementsAre(4096, 4096, 16384, 16384, 65536, 65536));
  ASSERT_EQ(json.at("fits").size(), 2U);
  EXPECT_EQ(json.at("fits")[1].at("hook"), "int8");
  EXPECT_EQ(json.at("fits")[1].at("sizes"), 3);
  EXPECT_NE(json.at("recommendation").at("verdict"), "too_few_iterations");
}

// tests/trainer/train/flags has the other wrong command lines.
TEST(NarrowcastBench, EveryErrorIsOneLine) { expect_one_line(bench_alone({}), "needs at least 2 ranks"); }

TEST(NarrowcastBench, RefusesOptionsThatDifferBetweenRanks) {
  const std::string script = std::string("exec ") + kNarrowcastBench + " --iterations=$((RANK + 1))";
  const ProgramEnd end = run_to_end({kNarrowcastRun, "--noprefix", "--nproc_per_node=2", "sh", "-c", script}, alone());
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("iterations differs between ranks: rank 0 has 1, rank 1 has 2"));
}

TEST(NarrowcastBench, LeavesNoFileBehindWhenItFails) {
  const TemporaryFolder folder;
  EXPECT_EQ(bench_on_two({"--threads=-1", "--json=" + folder / "bench.json"}).exit_code, 2);
  EXPECT_EQ(folder.entries(), 0);
}

// The limit of 16 KiB for files is above the JSON's size and below the page's.
TEST(NarrowcastBench, WhatWasMeasuredOutlivesAPageThatCannotBeWritten) {
  const TemporaryFolder folder;
  const Words bench = {kNarrowcastBench,
                       "--hooks=int8",
                       "--bucket_mib=0.01",
                       "--buckets=1",
                       "--iterations=1",
                       "--nokernels",
                       "--nolink",
                       "--node_size=1",
                       "--json=" + folder / "bench.json",
                       "--report=" + folder / "page.html"};
  const ProgramEnd end = run_to_end(
      Words{"sh", "-c", "ulimit -f 32; exec \"$@\"", "sh", kNarrowcastRun, "--noprefix", "--nproc_per_node=2"} + bench,
      alone());
  EXPECT_EQ(end.exit_code, 6);
  EXPECT_THAT(end.errors, HasSubstr("page.html: cannot be written: File too large"));
  EXPECT_THAT(end.output, HasSubstr("Recommendation: "));
  EXPECT_EQ(folder.entries(), 1) << "the JSON";
}

TEST(NarrowcastBench, ListsItsHooks) {
  const ProgramEnd end = bench_alone({"--list_hooks"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.output, AllOf(StartsWith("allreduce\n"), HasSubstr("\nbf16_compress\n")));
}

}  // namespace
}  // namespace narrowcast::testing
