// A rank stops without ending, or ends before it joins: the others do not wait for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "tests/programs/train_commands.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Rank 0 also serves the store: if it hangs, nothing answers. If several others wait, one of them times out first and
// prints the reason; the rest may learn it from that one. The jobs wait for their time-outs side by side.
TEST(NarrowcastTrainHangTest, TheTimeOutNamesRankAndCollectiveAndWhoDoesNotAnswer) {
  // The rank that stops, and where the others wait for it: in their node's memory, for a message, or both.
  const std::vector<LostRank> all_stopped{{0, 2, {"--levels=two"}},  {1, 2, {"--levels=two"}},
                                          {0, 2, {"--levels=one"}},  {1, 2, {"--levels=one"}},
                                          {1, 4, {"--node_size=2"}}, {2, 4, {"--node_size=2"}}};
  std::vector<std::unique_ptr<EndlessRanks>> jobs;
  for (const LostRank& stopped : all_stopped) {
    jobs.push_back(std::make_unique<EndlessRanks>(
        stopped.ranks, Words{"--hook=int8", "--timeout_seconds=10", "--silence_seconds=0"} + stopped.flags));
    jobs.back()->ranks[static_cast<size_t>(stopped.rank)]->send(SIGSTOP);
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    const LostRank& stopped = all_stopped[i];
    SCOPED_TRACE(::testing::PrintToString(stopped));
    std::string lines;
    for (const auto& [rank, end] : jobs[i]->wait_for_all_but(stopped.rank)) {
      EXPECT_EQ(end.exit_code, 3) << end.errors;
      const size_t line = end.errors.find("narrowcast-train: ");
      ASSERT_NE(line, std::string::npos) << end.errors;
      EXPECT_THAT(end.errors.substr(line),
                  AllOf(StartsWith("narrowcast-train: rank " + std::to_string(rank) + ": "), HasSubstr(" failed: ")))
          << "one line";
      lines += end.errors.substr(line);
    }
    EXPECT_THAT(lines,
                AllOf(HasSubstr("imed out"), HasSubstr("; rank " + std::to_string(stopped.rank) + " does not answer")));
  }
}

// The job ends long before the time-out, and all ranks name the stopped one, even if it serves the store. Ranks that
// learn of it last see other ranks end.
class NarrowcastTrainSilenceTest : public ::testing::TestWithParam<LostRank> {};

TEST_P(NarrowcastTrainSilenceTest, EndsAllWithinTwiceItsLimit) {
  const LostRank& stopped = GetParam();
  const EndlessRanks job(stopped.ranks, Words{"--hook=int8", "--silence_seconds=6"} + stopped.flags);
  const auto stop = std::chrono::steady_clock::now();
  job.ranks[static_cast<size_t>(stopped.rank)]->send(SIGSTOP);
  for (const auto& [rank, end] : job.wait_for_all_but(stopped.rank)) {
    EXPECT_EQ(end.exit_code, 3) << end.errors;
    EXPECT_THAT(end.errors,
                ::testing::EndsWith("narrowcast-train: rank " + std::to_string(rank) + ": rank " +
                                    std::to_string(stopped.rank) + " is lost: it has sent no heartbeat for 6 s\n"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - stop, std::chrono::seconds(12));
}

INSTANTIATE_TEST_SUITE_P(Stopped, NarrowcastTrainSilenceTest,
                         ::testing::Values(LostRank{0, 2, {"--levels=two"}}, LostRank{1, 2, {"--levels=one"}},
                                           LostRank{0, 3, {"--node_size=1"}}, LostRank{1, 3, {"--node_size=1"}},
                                           LostRank{2, 4, {"--node_size=2"}}));

// Whichever rank is killed, the other one would wait for minutes.
class NarrowcastTrainBeforeRendezvousTest : public ::testing::TestWithParam<int> {};

TEST_P(NarrowcastTrainBeforeRendezvousTest, AKilledRankEndsTheJob) {
  const std::string killed = std::to_string(GetParam());
  const std::string script = "test $RANK = " + killed + " && kill -KILL $$; exec \"$@\"";
  const ProgramEnd end = run_to_end(Words{kNarrowcastRun, "--nproc_per_node=2", "sh", "-c", script, "sh"} +
                                    (Words{kNarrowcastTrain} + small_gpt()));
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  EXPECT_THAT(end.errors, AllOf(HasSubstr("rank " + killed + " (pid "), HasSubstr("signal SIGKILL (Killed)"),
                                HasSubstr("; stopped 1 running rank")));
}

INSTANTIATE_TEST_SUITE_P(Killed, NarrowcastTrainBeforeRendezvousTest, ::testing::Values(0, 1));

}  // namespace
}  // namespace narrowcast::testing
