// The supervisor with recovery in place.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/trainer/launcher/job/fake_runner.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/job/supervisor.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;

constexpr Ending kSegfault{.signal = SIGSEGV};

// Replaces ranks a number of times, each after some time.
class FakeReplacer : public Replacer {
 public:
  explicit FakeReplacer(const FakeRunner& runner) : runner_(runner) {}

  bool replaces(const WorkerFailure& failure) override {
    asked.push_back(failure.rank);
    return left-- > 0;
  }
  std::optional<WorkerCommand> replacement(int64_t rank) override {
    asked_at.push_back(runner_.now());
    return runner_.now() < ready_at ? std::nullopt : std::optional(WorkerCommand{.rank = rank});
  }
  std::vector<int64_t> hanging(const std::set<int64_t>& running) override {
    looked_at.push_back(running);
    return runner_.now() >= hang_at ? std::exchange(hang, {}) : std::vector<int64_t>();
  }

  int64_t left = 1000;           // replacements that are allowed
  Clock::time_point ready_at{};  // when replacements may start
  Clock::time_point hang_at{};   // when the ranks `hang` are found
  std::vector<int64_t> hang;
  std::vector<int64_t> asked;
  std::vector<Clock::time_point> asked_at;  // for a replacement
  std::vector<std::set<int64_t>> looked_at;

 private:
  const FakeRunner& runner_;
};

class ReplacementTest : public ::testing::Test {
 protected:
  Outcome run(int64_t count) {
    std::vector<WorkerCommand> workers(static_cast<size_t>(count));
    for (int64_t rank = 0; rank < count; ++rank) {
      workers[static_cast<size_t>(rank)].rank = rank;
    }
    options.replacer = &replacer;
    return supervise(runner, workers, options);
  }

  FakeRunner runner;
  FakeReplacer replacer{runner};
  SupervisorOptions options;
};

TEST_F(ReplacementTest, StartsANewProcessBesideTheOthers) {
  runner.ends(1, milliseconds(100), kSegfault);
  runner.ends(0, milliseconds(200), {});
  runner.ends(1, milliseconds(210), {});
  const Outcome outcome = run(2);
  EXPECT_FALSE(outcome.failure);
  EXPECT_EQ(outcome.stopped_ranks, 0);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "clear 1 at 100", "start 1", "send SIGTERM at 210"));
}

TEST_F(ReplacementTest, ReplacesAllThatFailAtOnce) {
  runner.ends(1, milliseconds(100), kSegfault);
  runner.ends(0, milliseconds(100), {.exit_code = program::kPeerFailed});
  runner.ends(2, milliseconds(101), {.exit_code = program::kPeerFailed});
  for (int64_t rank = 0; rank < 3; ++rank) {
    runner.ends(rank, milliseconds(200), {});
  }
  EXPECT_FALSE(run(3).failure);
  EXPECT_THAT(replacer.asked, ElementsAre(1, 0, 2));
}

TEST_F(ReplacementTest, WaitsUntilItMayStart) {
  runner.ends(1, milliseconds(100), kSegfault);
  replacer.ready_at = Clock::time_point(milliseconds(145));
  runner.ends(0, milliseconds(200), {});
  runner.ends(1, milliseconds(200), {});
  EXPECT_FALSE(run(2).failure);
  EXPECT_EQ(replacer.asked_at.back().time_since_epoch(), milliseconds(150));
}

TEST_F(ReplacementTest, WaitsForTheProcessesThatTheFailedRankLeft) {
  runner.ends(1, milliseconds(100), kSegfault);
  runner.clears = milliseconds(125);
  runner.ends(0, milliseconds(200), {});
  runner.ends(1, milliseconds(200), {});
  EXPECT_FALSE(run(2).failure);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "clear 1 at 130", "start 1", "send SIGTERM at 200"));
}

TEST_F(ReplacementTest, StartsNothingBesideAProcessThatSurvivedSigkill) {
  runner.ends(1, milliseconds(100), kSegfault);
  runner.clears = milliseconds(100'000);
  const Outcome outcome = run(2);
  EXPECT_EQ(outcome.failure.value().rank, 1);
  EXPECT_EQ(outcome.failure->ending.signal, SIGSEGV);
  EXPECT_THAT(runner.log, Contains("send SIGTERM at 1100"));
}

TEST_F(ReplacementTest, ReplacesTheOnlyRank) {
  runner.ends(0, milliseconds(100), kSegfault);
  replacer.ready_at = Clock::time_point(milliseconds(150));
  runner.ends(0, milliseconds(200), {});
  EXPECT_FALSE(run(1).failure);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "clear 0 at 100", "start 0", "send SIGTERM at 200"));
}

TEST_F(ReplacementTest, EndsAllWhenARankIsNotReplaced) {
  runner.ends(1, milliseconds(100), kSegfault);
  runner.ends(1, milliseconds(300), {.exit_code = 7});
  replacer.left = 1;
  const Outcome outcome = run(2);
  EXPECT_EQ(outcome.failure.value().rank, 1);
  EXPECT_EQ(outcome.failure->ending.exit_code, 7);
  EXPECT_EQ(outcome.failure->after, milliseconds(300));
  EXPECT_EQ(outcome.stopped_ranks, 1);
  EXPECT_THAT(runner.log, Contains("send SIGTERM at 300"));
}

// As without recovery: the rank that others blame may end a little later than they do.
TEST_F(ReplacementTest, StillWaitsForTheRankThatOthersBlame) {
  replacer.left = 0;
  runner.ends(0, milliseconds(100), {.exit_code = program::kPeerFailed});
  runner.ends(1, milliseconds(150), kSegfault);
  const Outcome outcome = run(3);
  EXPECT_EQ(outcome.failure.value().rank, 1);
  EXPECT_THAT(replacer.asked, ElementsAre(0));
}

TEST_F(ReplacementTest, StartsNothingAfterASignal) {
  runner.ends(1, milliseconds(100), kSegfault);
  replacer.ready_at = Clock::time_point(milliseconds(1000));
  runner.user_sends(SIGTERM, milliseconds(120));
  const Outcome outcome = run(2);
  EXPECT_EQ(outcome.interrupted_by, SIGTERM);
  EXPECT_FALSE(outcome.failure);
  EXPECT_EQ(outcome.stopped_ranks, 1);
  EXPECT_THAT(runner.log,
              ElementsAre("start 0", "start 1", "clear 1 at 100", "send SIGTERM at 120", "send SIGTERM at 120"));
}

TEST_F(ReplacementTest, StartsNothingAfterTheGroupStoppedTheRound) {
  runner.ends(0, milliseconds(90), kSegfault);
  replacer.ready_at = Clock::time_point(milliseconds(1000));
  options.stop_wanted = [] { return true; };
  const Outcome outcome = run(1);
  EXPECT_TRUE(outcome.stopped_by_group);
  EXPECT_FALSE(outcome.left_behind);
  EXPECT_EQ(runner.now().time_since_epoch(), milliseconds(100));
}

TEST_F(ReplacementTest, EndsAllIfTheNewProcessCannotStart) {
  runner.ends(1, milliseconds(100), kSegfault);
  replacer.ready_at = Clock::time_point(milliseconds(110));
  options.stop_wanted = [this] {
    runner.refused_rank = 1;
    return false;
  };
  EXPECT_THROW(run(2), c10::ValueError);
  EXPECT_EQ(runner.log.back(), "send SIGKILL at 110");
}

TEST_F(ReplacementTest, KillsARankThatHangsAndReplacesIt) {
  replacer.hang = {1};
  replacer.hang_at = Clock::time_point(milliseconds(150));
  runner.ignored[1] = {SIGQUIT};
  runner.ends(0, milliseconds(2000), {});
  runner.ends(1, milliseconds(2000), {});
  EXPECT_FALSE(run(2).failure);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "send SIGQUIT to 1 at 200", "send SIGKILL to 1 at 1200",
                                      "clear 1 at 1200", "start 1", "send SIGTERM at 2000"));
  EXPECT_EQ(replacer.looked_at.front(), (std::set<int64_t>{0, 1}));
}

// Nothing would come of SIGQUIT.
TEST_F(ReplacementTest, KillsAStoppedRankAtOnce) {
  replacer.hang = {1};
  runner.stopped = {1};
  runner.ends(0, milliseconds(2000), {});
  runner.ends(1, milliseconds(2000), {});
  EXPECT_FALSE(run(2).failure);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "send SIGKILL to 1 at 100", "clear 1 at 100", "start 1",
                                      "send SIGTERM at 2000"));
}

TEST_F(ReplacementTest, DoesNotKillTheSuccessorOfARankThatQuits) {
  replacer.hang = {1};
  runner.ends(0, milliseconds(2000), {});
  runner.ends(1, milliseconds(2000), {});
  EXPECT_FALSE(run(2).failure);
  EXPECT_THAT(runner.log, ElementsAre("start 0", "start 1", "send SIGQUIT to 1 at 100", "clear 1 at 100", "start 1",
                                      "send SIGTERM at 2000"));
}

}  // namespace
}  // namespace narrowcast::launcher
