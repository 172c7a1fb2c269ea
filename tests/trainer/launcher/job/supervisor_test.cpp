#include "trainer/launcher/job/supervisor.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>

#include "tests/trainer/launcher/job/fake_runner.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

// The exit code that a shell would report.
int exit_code(const Outcome& outcome) {
  return outcome.failure               ? outcome.failure->ending.code()
         : outcome.interrupted_by != 0 ? 128 + outcome.interrupted_by
                                       : 0;
}

std::vector<WorkerCommand> ranks(int64_t count) {
  std::vector<WorkerCommand> workers(static_cast<size_t>(count));
  for (int64_t rank = 0; rank < count; ++rank) {
    workers[static_cast<size_t>(rank)].rank = rank;
  }
  return workers;
}

constexpr Ending kGood{};
constexpr Ending kSeven{.exit_code = 7};
constexpr Ending kBlamesPeer{.exit_code = program::kPeerFailed};
constexpr Ending kSegmentationFault{.signal = SIGSEGV};

TEST(Supervisor, EndsWithZeroWhenAllRanksSucceed) {
  FakeRunner runner;
  runner.ends(0, milliseconds(20), kGood);
  runner.ends(1, milliseconds(10), kGood);
  const Outcome outcome = supervise(runner, ranks(2));
  EXPECT_EQ(exit_code(outcome), 0);
  EXPECT_FALSE(outcome.failure);
  EXPECT_EQ(outcome.stopped_ranks, 0);
  EXPECT_FALSE(outcome.killed);
}

TEST(Supervisor, StopsAllRanksAtTheFirstFailure) {
  FakeRunner runner;
  runner.ends(1, milliseconds(100), kSeven);
  const Outcome outcome = supervise(runner, ranks(3));
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "start 2", "send SIGTERM at 100", "send SIGTERM at 100"));
  EXPECT_EQ(exit_code(outcome), 7);
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->rank, 1);
  EXPECT_EQ(outcome.failure->pid, 1001);
  EXPECT_EQ(outcome.failure->after, milliseconds(100));
  EXPECT_EQ(outcome.stopped_ranks, 2);
}

TEST(Supervisor, KillsWhatDoesNotStopInTime) {
  FakeRunner runner;
  runner.ends(1, milliseconds(100), kSeven);
  runner.ignored[0] = {SIGTERM};
  const Outcome outcome = supervise(runner, ranks(3), {.shutdown_timeout = milliseconds(3000)});
  EXPECT_EQ(runner.log.back(), "send SIGKILL at 3100");
  EXPECT_TRUE(outcome.killed);
  EXPECT_EQ(exit_code(outcome), 7);  // not the code of the rank that was killed
}

TEST(Supervisor, EndsAFailedJobWithinFiveSecondsByDefault) {
  FakeRunner runner;
  runner.ends(1, milliseconds(0), kBlamesPeer);
  runner.ignored[0] = {SIGTERM, SIGKILL};  // even if the whole kill_timeout passes
  supervise(runner, ranks(2));
  EXPECT_LT(runner.now().time_since_epoch(), milliseconds(5000));
}

TEST(Supervisor, ReportsASignalAsShellsDo) {
  FakeRunner runner;
  runner.ends(0, milliseconds(5), kSegmentationFault);
  EXPECT_EQ(exit_code(supervise(runner, ranks(2))), 128 + SIGSEGV);
}

TEST(Supervisor, DoesNotBlameARankThatLostItsPeer) {
  FakeRunner runner;
  runner.ends(0, milliseconds(100), kBlamesPeer);
  runner.ends(2, milliseconds(101), kBlamesPeer);
  runner.ends(1, milliseconds(400), kSegmentationFault);  // its core dump took a while
  const Outcome outcome = supervise(runner, ranks(4));
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->rank, 1);
  EXPECT_EQ(exit_code(outcome), 128 + SIGSEGV);
  EXPECT_EQ(runner.log.back(), "send SIGTERM at 400");
}

TEST(Supervisor, BlamesTheFirstWhenAllBlamePeers) {
  FakeRunner runner;
  runner.ends(2, milliseconds(100), kBlamesPeer);
  runner.ends(0, milliseconds(200), kBlamesPeer);
  const Outcome outcome = supervise(runner, ranks(3), {.blame_window = milliseconds(500)});
  EXPECT_EQ(runner.log.back(), "send SIGTERM at 600");
  EXPECT_EQ(outcome.failure->rank, 2);
  EXPECT_EQ(exit_code(outcome), program::kPeerFailed);
}

TEST(Supervisor, DoesNotWaitForABlamedRankWhenNoneIsLeft) {
  FakeRunner runner;
  runner.ends(0, milliseconds(100), kBlamesPeer);
  runner.ends(1, milliseconds(110), kGood);
  EXPECT_EQ(supervise(runner, ranks(2)).failure->rank, 0);
  EXPECT_EQ(runner.now().time_since_epoch(), milliseconds(110));
}

TEST(Supervisor, DoesNotBlameWhatItStopped) {
  FakeRunner runner;
  runner.ends(1, milliseconds(100), kBlamesPeer);
  runner.reaction = milliseconds(50);
  runner.obedient_ending = {.exit_code = 9};
  EXPECT_EQ(exit_code(supervise(runner, ranks(3))), program::kPeerFailed);
}

class SupervisorSignalTest : public ::testing::TestWithParam<int> {};

TEST_P(SupervisorSignalTest, IsPassedOnAndReported) {
  FakeRunner runner;
  runner.user_sends(GetParam(), milliseconds(50));
  const Outcome outcome = supervise(runner, ranks(2));
  EXPECT_EQ(runner.log.at(2), std::string("send SIG") + sigabbrev_np(GetParam()) + " at 50");
  EXPECT_EQ(outcome.interrupted_by, GetParam());
  EXPECT_EQ(exit_code(outcome), 128 + GetParam());
  EXPECT_FALSE(outcome.failure);
}

TEST_P(SupervisorSignalTest, KillsAtTheSecond) {
  FakeRunner runner;
  runner.ignored[0] = {GetParam()};
  runner.user_sends(GetParam(), milliseconds(50));
  runner.user_sends(GetParam(), milliseconds(1050));
  EXPECT_TRUE(supervise(runner, ranks(1)).killed);
  EXPECT_EQ(runner.log.back(), "send SIGKILL at 1050");
}

// The default waiting time of Slurm and Kubernetes.
TEST_P(SupervisorSignalTest, GivesWorkersTimeForACheckpoint) {
  FakeRunner runner;
  runner.ignored[0] = {GetParam()};
  runner.user_sends(GetParam(), milliseconds(50));
  EXPECT_TRUE(supervise(runner, ranks(2)).killed);
  EXPECT_EQ(runner.log.back(), "send SIGKILL at 30050");
  FakeRunner hurried;
  hurried.ignored[0] = {GetParam()};
  hurried.user_sends(GetParam(), milliseconds(50));
  supervise(hurried, ranks(2), {.shutdown_timeout = milliseconds(5000), .signal_timeout = milliseconds(1000)});
  EXPECT_EQ(hurried.log.back(), "send SIGKILL at 1050");
}

TEST_P(SupervisorSignalTest, CountsOnceIfItComesTwiceAtOnce) {
  FakeRunner runner;
  runner.reaction = milliseconds(1000);
  runner.user_sends(GetParam(), milliseconds(50));
  runner.user_sends(GetParam(), milliseconds(51));
  EXPECT_FALSE(supervise(runner, ranks(1)).killed);
}

INSTANTIATE_TEST_SUITE_P(Signals, SupervisorSignalTest, ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT));

TEST(Supervisor, TellsOfRanksThatSucceedByThemselves) {
  FakeRunner runner;
  runner.ends(2, milliseconds(10), {});
  runner.ends(0, milliseconds(20), kSeven);
  runner.obedient_ending = {};
  std::vector<int64_t> succeeded;
  const SupervisorOptions options{.succeeded = [&](int64_t rank) { succeeded.push_back(rank); }};
  supervise(runner, ranks(3), options);
  EXPECT_THAT(succeeded, ElementsAre(2));  // not 1, which was stopped
}

TEST(Supervisor, StopsWhenTheGroupWantsIt) {
  FakeRunner runner;
  const SupervisorOptions options{.stop_wanted = [&] { return runner.now().time_since_epoch() >= milliseconds(250); },
                                  .monitor_interval = milliseconds(100)};
  const Outcome outcome = supervise(runner, ranks(2), options);
  EXPECT_EQ(runner.log.at(2), "send SIGTERM at 300");
  EXPECT_TRUE(outcome.stopped_by_group);
  EXPECT_EQ(outcome.stopped_ranks, 2);
  EXPECT_EQ(exit_code(outcome), 0);
}

TEST(Supervisor, NamesItsOwnSuspectWhenTheGroupStopsItInTheBlameWindow) {
  FakeRunner runner;
  runner.ends(0, milliseconds(100), kBlamesPeer);
  const SupervisorOptions options{.stop_wanted = [&] { return runner.now().time_since_epoch() > milliseconds(150); },
                                  .monitor_interval = milliseconds(100)};
  const Outcome outcome = supervise(runner, ranks(2), options);
  EXPECT_EQ(outcome.failure->rank, 0);
  EXPECT_FALSE(outcome.stopped_by_group);
  EXPECT_EQ(runner.log.at(2), "send SIGTERM at 200");
}

TEST(Supervisor, TerminatesWorkersWhenItsOwnOutputIsClosed) {
  FakeRunner runner;
  runner.user_sends(SIGPIPE, milliseconds(50));
  EXPECT_EQ(exit_code(supervise(runner, ranks(1))), 128 + SIGPIPE);
  EXPECT_EQ(runner.log.back(), "send SIGTERM at 50");
}

TEST(Supervisor, KeepsTheFailureWhenTheUserThenInterrupts) {
  FakeRunner runner;
  runner.ends(0, milliseconds(10), kSeven);
  runner.ignored[1] = {SIGTERM};
  runner.user_sends(SIGINT, milliseconds(1000));
  const Outcome outcome = supervise(runner, ranks(2));
  EXPECT_EQ(exit_code(outcome), 7);
  EXPECT_EQ(outcome.interrupted_by, SIGINT);
  EXPECT_EQ(runner.log.back(), "send SIGKILL at 1000");
}

TEST(Supervisor, RemembersASignalThatComesWhileTheGroupStopsIt) {
  FakeRunner runner;
  runner.reaction = milliseconds(300);
  runner.user_sends(SIGTERM, milliseconds(200));
  const SupervisorOptions options{.stop_wanted = [] { return true; }, .monitor_interval = milliseconds(100)};
  const Outcome outcome = supervise(runner, ranks(1), options);
  EXPECT_EQ(outcome.interrupted_by, SIGTERM);
  EXPECT_FALSE(outcome.killed);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "send SIGTERM at 100", "send SIGTERM at 400"));
}

TEST(Supervisor, EndsWhatSuccessfulWorkersLeaveRunning) {
  FakeRunner runner;
  runner.ends(0, milliseconds(10), kGood);
  runner.leftovers = 1;
  EXPECT_EQ(exit_code(supervise(runner, ranks(1))), 0);
  EXPECT_EQ(runner.log.back(), "send SIGTERM at 10");

  FakeRunner stubborn;
  stubborn.ends(0, milliseconds(10), kGood);
  stubborn.leftovers = 1;
  stubborn.leftovers_obey = {SIGKILL};
  EXPECT_TRUE(supervise(stubborn, ranks(1)).killed);
}

TEST(Supervisor, TerminatesWhatInterruptedWorkersLeaveRunning) {
  FakeRunner runner;
  runner.user_sends(SIGINT, milliseconds(50));
  runner.leftovers = 1;
  runner.leftovers_obey = {SIGTERM, SIGKILL};
  EXPECT_FALSE(supervise(runner, ranks(1)).killed);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "send SIGINT at 50", "send SIGTERM at 50"));
}

TEST(Supervisor, GivesUpOnWhatSurvivesEverything) {
  FakeRunner runner;
  runner.ends(0, milliseconds(10), kSeven);
  runner.ignored[1] = {SIGTERM, SIGKILL};
  const Outcome outcome = supervise(runner, ranks(2));
  EXPECT_TRUE(outcome.left_behind);
  EXPECT_EQ(exit_code(outcome), 7);
}

TEST(Supervisor, EndsTheStartedRanksIfOneCannotStart) {
  FakeRunner runner;
  runner.refused_rank = 2;
  EXPECT_THROW(supervise(runner, ranks(3)), c10::ValueError);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "send SIGKILL at 0"));
}

TEST(Supervisor, EndsTheRanksIfAskingTheGroupFails) {
  FakeRunner runner;
  runner.ignored[1] = {SIGTERM};
  SupervisorOptions options;
  options.stop_wanted = [&]() -> bool {
    TORCH_CHECK_VALUE(runner.now().time_since_epoch() < milliseconds(200), "a full disk");
    return false;
  };
  EXPECT_THROW(supervise(runner, ranks(2), options), c10::ValueError);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "send SIGTERM at 200", "send SIGKILL at 3200"));
}

}  // namespace
}  // namespace narrowcast::launcher
