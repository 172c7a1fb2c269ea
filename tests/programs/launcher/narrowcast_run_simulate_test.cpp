// narrowcast-run --simulate_gbit, alone and with our programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/programs/launcher/run_commands.h"
#include "tests/programs/train_commands.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

using NarrowcastRunSimulateTest = NarrowcastRunFixture;

// The reason why this machine cannot have a simulated network; empty if it can.
std::string why_impossible() {
  const ProgramEnd end = run(1, "true", {"--simulate_gbit=1"});
  if (end.exit_code == 0) return "";
  EXPECT_EQ(end.exit_code, 2) << end.errors;
  EXPECT_EQ(end.output, "");
  EXPECT_THAT(end.errors, ::testing::AnyOf(HasSubstr("not permitted"), HasSubstr("Permission denied"),
                                           HasSubstr("not supported"), HasSubstr("No such file or directory")));
  return end.errors;
}

// A line, and nothing runs. A user namespace is where a test may forbid network namespaces.
TEST_F(NarrowcastRunSimulateTest, SaysWhyWhereTheKernelForbidsNetworkNamespaces) {
  const auto without_namespaces = [](const Words& command) {
    return Words{"unshare", "--user", "--map-root-user",
                 "sh",      "-c",     "echo 0 >/proc/sys/user/max_net_namespaces && exec \"$@\"",
                 "sh"} +
           command;
  };
  if (run_to_end(without_namespaces({"true"})).exit_code != 0) GTEST_SKIP() << "no user namespaces here";
  expect_refused(run_to_end(without_namespaces(command(2, "echo started", {"--simulate_gbit=0.1"}))),
                 "--simulate_gbit=0.1: this process cannot get a private network: No space left on device");
  const ProgramEnd unshaped = run_to_end(without_namespaces(command(2, "echo started")));
  EXPECT_EQ(unshaped.exit_code, 0) << unshaped.errors;
  EXPECT_THAT(lines_with("", unshaped.output), UnorderedElementsAre("[0]: started", "[1]: started"));
}

TEST_F(NarrowcastRunSimulateTest, GivesEachWorkerAnInterface) {
  if (const std::string why = why_impossible(); !why.empty()) GTEST_SKIP() << why;
  const ProgramEnd end = run(2,
                             "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME $LOCAL_RANK $LOCAL_WORLD_SIZE "
                             "\"$NARROWCAST_SIMULATED_NETWORK\" $(tail -n +3 /proc/net/dev | cut -d: -f1)",
                             {"--simulate_gbit=2.5"});
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, HasSubstr("the network is simulated: each rank has an interface of 2.5 Gbit/s\n"));
  EXPECT_THAT(lines_with("[0]: ", end.output), ElementsAre("198.18.0.1 eth0 0 2 2.5 Gbit/s lo eth0"));
  EXPECT_THAT(lines_with("[1]: ", end.output), ElementsAre("198.18.0.1 eth0 1 2 2.5 Gbit/s lo eth0"));
}

// Restarted workers find the interfaces at the same place as their predecessors did.
TEST_F(NarrowcastRunSimulateTest, OutlivesARestart) {
  if (const std::string why = why_impossible(); !why.empty()) GTEST_SKIP() << why;
  const ProgramEnd end = run(2,
                             "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; "
                             "echo $(tail -n +3 /proc/net/dev | cut -d: -f1)",
                             {"--simulate_gbit=1", "--max_restarts=1"});
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(lines_with("", end.output), UnorderedElementsAre("[0]: lo eth0", "[1]: lo eth0"));
}

// A kernel without sch_netem is reported, and nothing runs.
TEST_F(NarrowcastRunSimulateTest, DelaysOrSaysWhyNot) {
  if (const std::string why = why_impossible(); !why.empty()) GTEST_SKIP() << why;
  const ProgramEnd end = run(2, "echo $NARROWCAST_SIMULATED_NETWORK", {"--simulate_gbit=1", "--simulate_us=50"});
  if (end.exit_code == 2) {
    EXPECT_THAT(end.errors, StartsWith("narrowcast-run: --simulate_us=50: adding a delay (sch_netem): "));
    EXPECT_EQ(end.output, "");
    GTEST_SKIP() << end.errors;
  }
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(lines_with("", end.output), UnorderedElementsAre("[0]: 1 Gbit/s, 50 us", "[1]: 1 Gbit/s, 50 us"));
}

// 10 Mbit/s: on any machine, sending takes most of the time.
constexpr double kGbit = 0.01;
constexpr int kSteps = 8;

// The lines of metrics.jsonl.
std::vector<nlohmann::json> train_over_simulated_network(const std::string& folder, const std::string& hook) {
  const Words command = {kRun, "--nproc_per_node=2", "--simulate_gbit=" + std::to_string(kGbit), kNarrowcastTrain};
  const Words flags = small_gpt() + Words{"--width=64", "--steps=" + std::to_string(kSteps), "--hook=" + hook,
                                          "--bucket_cap_mb=25", "--output_dir=" + folder};
  const ProgramEnd end = run_to_end(command + flags, alone());
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  return json_lines(folder + "/metrics.jsonl");
}

// A rank's payload takes at least its bytes divided by the rate, less the burst of a token bucket of 16 KiB in each
// step, and less a tenth for the packet in transit. On a busy machine a training may take longer by any amount. If
// `none` waits 0.2 s per step and int8 a quarter of that, other work of up to 0.4 s still gives a ratio of 1.3.
TEST_F(NarrowcastRunSimulateTest, TrainingTakesAsLongAsItsBytes) {
  if (const std::string why = why_impossible(); !why.empty()) GTEST_SKIP() << why;
  const auto none = train_over_simulated_network(folder / "none", "none");
  const auto int8 = train_over_simulated_network(folder / "int8", "int8");
  for (const auto& lines : {none, int8}) {
    EXPECT_EQ(lines.front().at("network"), "simulated, 0.01 Gbit/s");
    EXPECT_EQ(lines.front().at("nodes"), "2 x 1");
    const double at_once = kSteps * 1.1 * (16 << 10);
    const double waited_for = lines.back().at("payload_bytes_sent").get<double>() - at_once;
    EXPECT_GT(waited_for, 0);
    EXPECT_GE(lines.back().at("seconds").get<double>(), waited_for * 8 / (kGbit * 1e9));
  }
  EXPECT_GT(none.back().at("payload_bytes_sent"), 3.5 * int8.back().at("payload_bytes_sent").get<double>());
  EXPECT_GT(none.back().at("seconds"), 1.3 * int8.back().at("seconds").get<double>());
}

TEST_F(NarrowcastRunSimulateTest, DryRunTakesEachRankForANode) {
  if (const std::string why = why_impossible(); !why.empty()) GTEST_SKIP() << why;
  const Words command = {kRun, "--nproc_per_node=2", "--simulate_gbit=1", kNarrowcastTrain, "--dry_run", "--hook=int8"};
  const ProgramEnd end = run_to_end(command + small_gpt(), alone());
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, AllOf(HasSubstr("simulated, 1 Gbit/s\n"), HasSubstr("2 x 1\n")));
}

TEST_F(NarrowcastRunSimulateTest, BenchMeasuresTheSimulatedLink) {
  if (const std::string why = why_impossible(); !why.empty()) GTEST_SKIP() << why;
  const ProgramEnd end = run_to_end({kRun, "--noprefix", "--nproc_per_node=3", "--simulate_gbit=0.1", kNarrowcastBench,
                                     "--hooks=int8", "--bucket_mib=0.25", "--buckets=1", "--iterations=2",
                                     "--nokernels", "--nocheck", "--json=" + folder / "bench.json"},
                                    alone());
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, StartsWith("Ranks: 3 on 3 nodes, 1 on each; network: simulated, 0.1 Gbit/s.\n"));
  const auto json = nlohmann::json::parse(files::read_file(folder / "bench.json"));
  EXPECT_EQ(json.at("network"), "simulated, 0.1 Gbit/s");
  // Earlier messages use up the burst before those that are measured.
  EXPECT_LE(json.at("link").at("gbit_per_second"), 0.1);
  EXPECT_GT(json.at("link").at("gbit_per_second"), 0);
}

}  // namespace
}  // namespace narrowcast::testing
