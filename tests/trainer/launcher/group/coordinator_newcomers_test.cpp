// Nodes that join a job whose ranks live on, and whose own ranks still start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/launcher/group/coordinator_fixture.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using rendezvous::Progress;
using ::testing::HasSubstr;

class CoordinatorNewcomersTest : public CoordinatorTest {
 protected:
  // Node "a" alone, in its first round.
  void begin_alone(int64_t most) {
    begin_in_place(1, most);
    for (int i = 0; i < 4; ++i) {
      after(900);
    }
    ASSERT_EQ(decision().phase, Phase::kRunning);
  }
};

// Nobody waits for them yet. The first one was given --dry_run.
TEST_F(CoordinatorNewcomersTest, ANewcomerWhoseRanksEndWhileTheyStartEndsAlone) {
  begin_alone(2);
  runs_in_place();
  const auto ends = [&](NodeReport::End end, int code, const std::string& why) {
    const int64_t ticket = comes("b", 0);
    ASSERT_EQ(after(100).members.size(), 2U);
    reports(ticket, end, code);
    view(ticket).report->report.text = "no such program";
    EXPECT_EQ(after(100).phase, Phase::kRunning) << why;
    EXPECT_EQ(decision().members.size(), 1U);
    EXPECT_EQ(decision().losses, 0) << "for the ranks of the others";
    EXPECT_EQ(decision().change, "node 1 (b) was removed: its ranks did not start");
    ASSERT_TRUE(decision().evicted.contains(ticket));
    EXPECT_EQ(decision().evicted.at(ticket).code, code == 0 ? program::kWrongUse : code);
    EXPECT_THAT(decision().evicted.at(ticket).text, HasSubstr("the others go on without this node: " + why));
  };
  ends(NodeReport::End::kSucceeded, 0, "its ranks ended with exit code 0 before they joined the others");
  ends(NodeReport::End::kFailed, 7, "exit code 7");
  ends(NodeReport::End::kRefused, 0, "no such program");
}

TEST_F(CoordinatorNewcomersTest, ANewcomerThatIsLostWhileItsRanksStartIsNoLossForRanks) {
  begin_alone(3);
  runs_in_place();
  comes("b", 0);
  ASSERT_EQ(after(100).members.size(), 2U);
  view(2).progress = Progress::kMet;
  const auto lose_a_newcomer = [&](Progress progress) {
    const int64_t ticket = comes("c", 0);
    ASSERT_EQ(after(100).members.size(), 3U);
    view(ticket).progress = progress;
    dead.insert(ticket);
    after(600);
    after(600);
    EXPECT_EQ(after(100).members.size(), 2U);
  };
  lose_a_newcomer(Progress::kStart);
  lose_a_newcomer(Progress::kReady);
  EXPECT_EQ(decision().losses, 0);
  lose_a_newcomer(Progress::kMet);
  EXPECT_EQ(decision().losses, 1);
}

// It does not hold up a job whose other ranks have ended, whatever becomes of it.
TEST_F(CoordinatorNewcomersTest, AJobEndsWithoutANewcomerWhoseRanksStillStart) {
  begin_alone(2);
  runs_in_place();
  const int64_t ticket = comes("b", 0);
  ASSERT_EQ(after(100).members.size(), 2U);
  coordinator->let_round_end();
  dead.insert(ticket);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(after(500).phase, Phase::kRunning) << "the others still end";
  }
  reports(1, NodeReport::End::kSucceeded);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().cause, GroupEnd::Cause::kSucceeded);
}

// The others take in the one that is ready, and need not wait for the one that comes next.
TEST_F(CoordinatorNewcomersTest, OnlyTheNodesThatStartAreLeftOut) {
  begin_alone(3);
  runs_in_place();
  const int64_t first = comes("b", 0);
  after(100);
  EXPECT_TRUE(is_left_out(first));
  view(first).progress = Progress::kReady;
  const int64_t second = comes("c", 0);
  ASSERT_EQ(after(100).members.size(), 3U);
  EXPECT_FALSE(is_left_out(1));
  EXPECT_FALSE(is_left_out(first));
  EXPECT_TRUE(is_left_out(second));
  view(first).progress = Progress::kStart;
  after(100);
  EXPECT_TRUE(is_left_out(first)) << "its process has ended";
}

// 2 and 6 ranks can share a batch of 18, 2 of each node. 4 and 8 cannot.
class UnfittingNewcomersTest : public CoordinatorNewcomersTest {
 protected:
  // Node "a", in its first round. The number of ranks must divide `number`.
  void begin_dividing(int64_t number, int64_t most) {
    begin_alone(most);
    EXPECT_EQ(after(100).phase, Phase::kRunning);
    coordinator->let_members_change(Newcomers::kJoin, number);
  }
  int64_t is_ready(const std::string& host) {
    const int64_t ticket = comes(host, 0);
    after(100);
    view(ticket).progress = Progress::kReady;
    after(100);
    return ticket;
  }
};

TEST_F(UnfittingNewcomersTest, WaitUntilTheyJoinTogether) {
  begin_dividing(18, 4);
  const int64_t first = is_ready("b");
  EXPECT_TRUE(is_left_out(first));
  EXPECT_EQ(decision().note, "node 1 (b) waits until more nodes join: the number of ranks must divide 18");
  const int64_t second = is_ready("c");
  EXPECT_FALSE(is_left_out(first));
  EXPECT_FALSE(is_left_out(second));
  EXPECT_EQ(decision().note, "");
  const int64_t third = is_ready("d");
  EXPECT_FALSE(is_left_out(first));
  EXPECT_TRUE(is_left_out(third));
}

TEST_F(UnfittingNewcomersTest, MayTakeThePlaceOfALostNode) {
  begin_dividing(18, 4);
  is_ready("b");
  const int64_t second = is_ready("c");
  view(2).progress = Progress::kMet;
  view(second).progress = Progress::kMet;
  const int64_t third = is_ready("d");
  ASSERT_TRUE(is_left_out(third));
  dead.insert(2);
  after(600);
  after(600);
  ASSERT_EQ(after(100).members.size(), 3U);
  EXPECT_FALSE(is_left_out(third));
}

// Ranks that cannot share their batch end with an error that names possible numbers.
TEST_F(UnfittingNewcomersTest, AreWaitedForIfTheOthersAreTooFew) {
  begin_in_place(2, 3);
  comes("b", 0);
  for (int i = 0; i < 4; ++i) {
    after(900);
  }
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  coordinator->let_members_change(Newcomers::kJoin, 2);
  dead.insert(2);
  const int64_t other = comes("c", 0);
  after(600);
  after(600);
  ASSERT_EQ(after(100).members.size(), 2U);
  EXPECT_FALSE(is_left_out(other));
}

// With fewer than the minimum nobody works.
TEST_F(CoordinatorNewcomersTest, RanksOfTooFewNodesWaitForOnesThatStart) {
  begin_in_place(2, 3);
  comes("b", 0);
  for (int i = 0; i < 4; ++i) {
    after(900);
  }
  runs_in_place();
  const int64_t newcomer = comes("c", 0);
  after(100);
  EXPECT_TRUE(is_left_out(newcomer));
  dead.insert(2);
  after(600);
  after(600);
  ASSERT_EQ(after(100).members.size(), 2U);
  EXPECT_FALSE(is_left_out(newcomer));
}

TEST_F(CoordinatorNewcomersTest, ANewcomerIsNoLongerTakenInWhenTheOthersEnd) {
  begin_alone(2);
  runs_in_place();
  const int64_t ticket = comes("b", 0);
  after(100);
  view(ticket).progress = Progress::kReady;
  after(100);
  EXPECT_FALSE(is_left_out(ticket));
  coordinator->let_round_end();
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_TRUE(is_left_out(ticket));
  reports(1, NodeReport::End::kSucceeded);
  EXPECT_EQ(after(100).phase, Phase::kOver) << "without it";
}

TEST_F(CoordinatorNewcomersTest, MembersAreNewUntilTheyHaveMetTheOthers) {
  begin_alone(2);
  runs_in_place();
  const int64_t ticket = comes("b", 0);
  for (const Progress progress : {Progress::kStart, Progress::kReady, Progress::kMet}) {
    view(ticket).progress = progress;
    ASSERT_EQ(after(100).members.size(), 2U);
    EXPECT_FALSE(decision().members[0].is_new);
    EXPECT_EQ(decision().members[1].is_new, progress != Progress::kMet);
  }
}

// The program of a user has any exit code. Its error file tells that the others can go on.
TEST_F(CoordinatorNewcomersTest, ANewcomerThatMetTheOthersAndDoesNotFitThemEndsAlone) {
  begin_alone(2);
  runs_in_place();
  const int64_t ticket = comes("b", 0);
  ASSERT_EQ(after(100).members.size(), 2U);
  view(ticket).progress = Progress::kMet;
  after(100);
  reports(ticket, NodeReport::End::kFailed, 134);
  FailureRecord& failure = *view(ticket).report->report.failure;
  failure.is_final = failure.is_misfit = true;
  failure.message = "state 'x': differs";
  view(ticket).report = parse_report(to_text(*view(ticket).report));
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 1U);
  EXPECT_EQ(decision().losses, 1) << "the others wait for its ranks";
  EXPECT_EQ(decision().evicted.at(ticket).code, 134);
  EXPECT_EQ(decision().evicted.at(ticket).text, "the others go on without this node: state 'x': differs");
}

// Nodes "a", "b" and, as a newcomer, "c", until the second one takes over from the first.
class SucceededNewcomersTest : public CoordinatorNewcomersTest {
 protected:
  // The second one has read this progress of "c". Others know that the nodes with the tickets `met` have met.
  void take_over(Progress progress, const std::vector<int64_t>& met = {}) {
    begin_in_place(1, 3);
    comes("b", 0);
    for (int i = 0; i < 4; ++i) {
      after(900);
    }
    runs_in_place();
    comes("c", 0);
    after(100);
    view(3).progress = progress;
    ASSERT_EQ(after(100).members.size(), 3U);
    const Succession succession = {
        .decision = parse_decision(to_text(decision())), .ticket = 2, .store = "b:1", .lost = {{1, "it was killed"}}};
    coordinator.emplace(describe("b", 0), timeouts, succession);
    coordinator->learn({.change = {.round = decision().round, .changes = decision().changes}, .met = met}, {});
    view(1).absent = "it was killed";
    view(3).progress = Progress::kStart;  // in the new store
    dead = {1};
    ASSERT_EQ(after(100).members.size(), 2U);
    EXPECT_EQ(decision().losses, 1);
  }
};

TEST_F(SucceededNewcomersTest, AreStillNew) {
  take_over(Progress::kStart);
  EXPECT_TRUE(is_left_out(3));
  reports(3, NodeReport::End::kFailed, program::kWrongUse);
  view(3).report->report.failure->is_final = true;
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 1U);
  EXPECT_EQ(decision().losses, 1) << "no loss for the ranks of the others";
  EXPECT_EQ(decision().evicted.at(3).code, program::kWrongUse);
}

// They were given --dry_run.
TEST_F(SucceededNewcomersTest, EndAloneIfTheirRanksEndBeforeTheyMeet) {
  take_over(Progress::kReady);
  reports(3, NodeReport::End::kSucceeded);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 1U);
  EXPECT_THAT(decision().evicted.at(3).text, HasSubstr("its ranks ended with exit code 0"));
}

TEST_F(SucceededNewcomersTest, HaveMetOnceAndForAll) {
  take_over(Progress::kMet);
  EXPECT_FALSE(is_left_out(3));
  reports(3, NodeReport::End::kFailed, program::kWrongUse);
  view(3).report->report.failure->is_final = true;
  EXPECT_EQ(after(100).phase, Phase::kStopping);
}

TEST_F(SucceededNewcomersTest, HaveMetIfAnyoneKnowsIt) {
  take_over(Progress::kReady, {2, 3});
  EXPECT_FALSE(decision().members[1].is_new);
  EXPECT_FALSE(is_left_out(3));
  reports(3, NodeReport::End::kFailed, program::kWrongUse);
  view(3).report->report.failure->is_final = true;
  EXPECT_EQ(after(100).phase, Phase::kStopping) << "its ranks have worked with the others";
}

TEST_F(CoordinatorNewcomersTest, LaunchersThatWaitForAPlaceAreKnown) {
  begin_alone(1);
  runs_in_place();
  const int64_t spare = comes("b", 0);
  EXPECT_EQ(after(100).spares, std::vector<int64_t>{spare});
  view(spare).left = true;
  EXPECT_EQ(after(100).spares, std::vector<int64_t>());
}

// All ranks would start again.
TEST_F(CoordinatorNewcomersTest, ANewcomerThatComesEarlyWaitsUntilTheRanksCanRegroup) {
  begin_alone(3);
  comes("b", 0);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().changes, 0);
  coordinator->let_members_change();
  EXPECT_EQ(after(100).changes, 1);
}

TEST_F(CoordinatorNewcomersTest, ANewcomerDoesNotWaitForRanksThatCannotRegroup) {
  begin_alone(2);
  comes("b", 0);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  for (int i = 0; i < 4; ++i) {
    after(500);
  }
  EXPECT_EQ(decision().phase, Phase::kStopping) << "last_call has passed";
}

}  // namespace
}  // namespace narrowcast::launcher
