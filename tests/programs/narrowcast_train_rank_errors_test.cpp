// The behaviour of narrowcast-train after errors of a job's ranks: they do not meet, they differ, or one is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/loopback_socket.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// One rank gets a flag that ends it before it joins: the others do not wait for it until the time-out.
class NarrowcastTrainDesertedTest : public ::testing::TestWithParam<std::string> {};

TEST_P(NarrowcastTrainDesertedTest, EndsSoon) {
  const std::string program = kNarrowcastTrain + std::string(" --layers=1 --heads=2 --width=16 --context=16");
  const ProgramEnd end = run_to_end({kNarrowcastRun, "--nproc_per_node=2", "sh", "-c",
                                     "test $RANK = 1 && exec " + program + " " + GetParam() + "; exec " + program},
                                    alone());
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr("[0]: narrowcast-train: rank 0: joining the job at 127.0.0.1:"));
  EXPECT_THAT(end.errors, HasSubstr(" failed: missing rank 1: it has ended with exit code 0 (was it "));
}

INSTANTIATE_TEST_SUITE_P(Flags, NarrowcastTrainDesertedTest, ::testing::Values("--help", "--dry_run"));

TEST(NarrowcastTrainRankErrorsTest, ABatchThatTheRanksCannotShare) {
  const ProgramEnd end = train_on(2, small_gpt() + Words{"--batch_size=7"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("batch_size: must be divisible by ranks * accumulation_steps (2 * 1), but is 7"));
}

TEST(NarrowcastTrainRankErrorsTest, AWorldOfNone) {
  auto environment = one_of_two(0, free_port());
  environment["WORLD_SIZE"] = "0";
  expect_one_line(run_to_end({kNarrowcastTrain}, environment), 2, "WORLD_SIZE");
}

TEST(NarrowcastTrainRankErrorsTest, HalfAnEnvironment) {
  auto environment = one_of_two(0, free_port());
  environment["MASTER_PORT"] = "";
  expect_one_line(run_to_end(Words{kNarrowcastTrain} + small_gpt(), environment), 2, "MASTER_PORT");
}

TEST(NarrowcastTrainRankErrorsTest, TlsThatWouldNotEncrypt) {
  auto environment = one_of_two(0, free_port());
  environment["GLOO_DEVICE_TRANSPORT"] = "TCP_TLS";
  expect_one_line(run_to_end(Words{kNarrowcastTrain} + small_gpt(), environment), 2, "GLOO_DEVICE_TRANSPORT=TCP_TLS: ");
}

TEST(NarrowcastTrainRankErrorsTest, AnInterfaceIsNoErrorUnderALauncherWhoseJobMayGrow) {
  EXPECT_EQ(train_on(1, small_gpt() + Words{"--interface=lo"}).exit_code, 0);
  EXPECT_EQ(train_on(1, small_gpt() + Words{"--interface=no-such-if"}).exit_code, 2);
}

TEST(NarrowcastTrainRankErrorsTest, APeerThatNeverComes) {
  const ProgramEnd end =
      run_to_end(Words{kNarrowcastTrain, "--timeout_seconds=2"} + small_gpt(), one_of_two(0, free_port()));
  expect_one_line(end, 3, "127.0.0.1");
}

TEST(NarrowcastTrainRankErrorsTest, APortInUse) {
  const network::ListeningSocket taken = loopback_socket();
  const int64_t port = taken.port();
  const ProgramEnd end = run_to_end(Words{kNarrowcastTrain, "--timeout_seconds=5"} + small_gpt(), one_of_two(0, port));
  expect_one_line(end, 3, std::to_string(port));
}

// Two ranks without a launcher, which would end both.
struct TwoRanks {
  explicit TwoRanks(const Words& first, const Words& second, int64_t port = free_port())
      : rank0(Words{kNarrowcastTrain} + first, one_of_two(0, port)),
        rank1(Words{kNarrowcastTrain} + second, one_of_two(1, port)) {}
  RunningProgram rank0;
  RunningProgram rank1;
};

TEST(NarrowcastTrainRankErrorsTest, RanksThatWereToldDifferentThings) {
  for (const auto& [flag, text] : std::vector<std::pair<std::string, std::string>>{
           {"--hook=bf16_compress", "hook differs between ranks: rank 0 has auto, rank 1 has bf16_compress"},
           {"--width=32", "model_options differs between ranks"}}) {
    TwoRanks ranks(small_gpt(), small_gpt() + Words{flag});
    expect_one_line(ranks.rank0.wait(), 2, text);
    expect_one_line(ranks.rank1.wait(), 2, text);
  }
}

TEST(NarrowcastTrainRankErrorsTest, RanksThatWereToldDifferentHookOptions) {
  const Words per_channel = small_gpt() + Words{"--hook=quantize_per_channel"};
  const Words verify = {"--model=ddp_comm_hook_task", "--verify_gradients", "--hook=int8"};
  const Words int8 = small_gpt() + Words{"--hook=int8"};
  for (const auto& [flags, flag, text] : std::vector<std::tuple<Words, std::string, std::string>>{
           {per_channel, "--channel_size=64", "channel_size differs between ranks: rank 0 has 512, rank 1 has 64"},
           {int8, "--node_size=2", "node_size differs between ranks: rank 0 does not have it, rank 1 has 2"},
           {verify, "--error_feedback", "error_feedback differs between ranks: rank 0 has false, rank 1 has true"}}) {
    TwoRanks ranks(flags, flags + Words{flag});
    expect_one_line(ranks.rank0.wait(), 2, text);
    expect_one_line(ranks.rank1.wait(), 2, text);
  }
}

// The rank that is killed, and where ranks wait for each other: for messages, in shared memory, or both.
class NarrowcastTrainKilledTest : public ::testing::TestWithParam<LostRank> {};

// A rank dies in the middle of a step; the others must notice.
TEST_P(NarrowcastTrainKilledTest, TheSurvivorsEndWithOneLineAndExitCodeThree) {
  const LostRank& killed = GetParam();
  const EndlessRanks job(killed.ranks, killed.flags);
  RunningProgram& victim = *job.ranks[static_cast<size_t>(killed.rank)];
  victim.send(SIGKILL);
  EXPECT_EQ(victim.wait().signal, SIGKILL);
  for (const auto& [rank, end] : job.wait_for_all_but(killed.rank)) {
    EXPECT_EQ(end.exit_code, 3) << end.errors;
    EXPECT_EQ(count_of("narrowcast-train: ", end.errors), 1) << end.errors;
    EXPECT_THAT(end.errors, HasSubstr("rank " + std::to_string(rank)));
    EXPECT_THAT(end.errors, Not(HasSubstr(".cpp:"))) << "LibTorch's own reports";
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, NarrowcastTrainKilledTest,
                         ::testing::Values(LostRank{0, 2, {"--hook=quantize_per_channel"}},
                                           LostRank{1, 2, {"--hook=quantize_per_channel"}},
                                           LostRank{0, 2, {"--hook=int8", "--levels=two"}},
                                           LostRank{1, 2, {"--hook=int8", "--levels=two"}},
                                           LostRank{1, 4, {"--hook=int8", "--node_size=2"}},
                                           LostRank{2, 4, {"--hook=int8", "--node_size=2"}}));

}  // namespace
}  // namespace narrowcast::testing
