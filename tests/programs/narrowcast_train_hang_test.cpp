// A rank that stops without ending, or ends before it joins: the others do not wait for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <tuple>

#include "tests/programs/train_commands.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Which rank stops, and where the other one waits for it: in the memory of their node, or for a message.
class NarrowcastTrainHangTest : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

// Rank 0 serves the store, too: where it hangs, nobody answers at all.
TEST_P(NarrowcastTrainHangTest, TheTimeOutNamesRankAndCollectiveAndWhoDoesNotAnswer) {
  const auto& [stopped, levels] = GetParam();
  const int64_t port = free_port();
  const Words flags = {"--steps=1000000", "--log_every=1", "--hook=int8", levels, "--timeout_seconds=10"};
  const Words command = Words{kNarrowcastTrain} + (small_gpt() + flags);
  RunningProgram rank0(command, one_of_two(0, port));
  RunningProgram rank1(command, one_of_two(1, port));
  rank0.wait_for_errors("step");
  (stopped == 0 ? rank0 : rank1).send(SIGSTOP);
  const ProgramEnd end = (stopped == 0 ? rank1 : rank0).wait();
  EXPECT_EQ(end.exit_code, 3) << end.errors;
  const size_t line = end.errors.find("narrowcast-train: ");
  ASSERT_NE(line, std::string::npos) << end.errors;
  EXPECT_THAT(end.errors.substr(line),
              AllOf(StartsWith("narrowcast-train: rank " + std::to_string(1 - stopped) + ": "), HasSubstr("imed out"),
                    HasSubstr("; rank " + std::to_string(stopped) + " does not answer"), HasSubstr(" failed: ")))
      << "one line";
}

INSTANTIATE_TEST_SUITE_P(Stopped, NarrowcastTrainHangTest,
                         ::testing::Combine(::testing::Values(0, 1),
                                            ::testing::Values("--levels=two", "--levels=one")));

// Whoever is killed, the other one would wait for minutes.
class NarrowcastTrainBeforeRendezvousTest : public ::testing::TestWithParam<int> {};

TEST_P(NarrowcastTrainBeforeRendezvousTest, AKilledRankEndsTheJob) {
  const std::string killed = std::to_string(GetParam());
  const std::string script = "test $RANK = " + killed + " && kill -KILL $$; exec \"$@\"";
  const ProgramEnd end = run_to_end(Words{kNarrowcastRun, "--nproc_per_node=2", "sh", "-c", script, "sh"} +
                                    (Words{kNarrowcastTrain} + small_gpt()));
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  EXPECT_THAT(end.errors, AllOf(HasSubstr("rank " + killed + " (pid "), HasSubstr("signal SIGKILL (Killed)"),
                                HasSubstr("; stopped 1 rank that ran")));
}

INSTANTIATE_TEST_SUITE_P(Killed, NarrowcastTrainBeforeRendezvousTest, ::testing::Values(0, 1));

}  // namespace
}  // namespace narrowcast::testing
