// Nodes that are lost or join while ranks live on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/launcher/group/coordinator_fixture.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using ::testing::HasSubstr;

class CoordinatorInPlaceTest : public CoordinatorTest {};

TEST_F(CoordinatorInPlaceTest, MembersChangeInPlace) {
  begin_in_place(1, 2);
  comes("b", 0);
  runs_in_place();
  dead.insert(2);
  after(600);
  after(600);
  EXPECT_EQ(decision().phase, Phase::kRunning);
  EXPECT_EQ(decision().round, 0);
  EXPECT_EQ(decision().changes, 1);
  EXPECT_EQ(decision().change, "node 1 (b) was lost: no heartbeat for 1 s");
  EXPECT_EQ(decision().members.size(), 1U);
  comes("c", 0);
  EXPECT_EQ(after(100).changes, 2);
  EXPECT_EQ(decision().change, "c (pid 7) joined");
  EXPECT_EQ(decision().members.back().ticket, 3);
  reports(3, NodeReport::End::kInterrupted);
  EXPECT_EQ(after(100).changes, 3);
  EXPECT_EQ(decision().change, "node 1 (c) left");
  EXPECT_EQ(after(100).changes, 3);
  EXPECT_EQ(decision().phase, Phase::kRunning);
}

TEST_F(CoordinatorInPlaceTest, RanksWaitInPlaceForEnoughNodes) {
  begin_in_place(2, 2);
  comes("b", 0);
  runs_in_place();
  dead.insert(2);
  after(600);
  after(600);
  EXPECT_EQ(decision().phase, Phase::kRunning);
  EXPECT_EQ(decision().changes, 0);
  EXPECT_EQ(decision().losses, 1) << "the ranks learn that they wait";
  EXPECT_EQ(decision().change, "node 1 (b) was lost: no heartbeat for 1 s");
  EXPECT_THAT(decision().note, HasSubstr("1 node has joined of at least 2"));
  comes("c", 0);
  EXPECT_EQ(after(100).changes, 1);
  EXPECT_EQ(decision().losses, 1);
  EXPECT_EQ(decision().change, "node 1 (b) was lost: no heartbeat for 1 s, c (pid 7) joined");
  dead.insert(3);
  after(600);
  after_the_join_timeout();
  after(600);
  EXPECT_EQ(decision().phase, Phase::kOver);
  EXPECT_THAT(end().text, HasSubstr("not complete within 10 s"));
}

// Otherwise its failure would start a training again that is done.
TEST_F(CoordinatorInPlaceTest, ANodeThatJoinsWhenTheOthersEndComesTooLate) {
  begin_in_place(1, 3);
  comes("b", 0);
  for (int i = 0; i < 4; ++i) {
    after(900);
  }
  runs_in_place();
  comes("c", 0);
  EXPECT_EQ(after(100).changes, 1);
  coordinator->let_round_end();
  reports(3, NodeReport::End::kFailed, program::kPeerFailed);
  comes("d", 0);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 3U) << "nobody else joins";
  for (const int64_t ticket : {1, 2}) reports(ticket, NodeReport::End::kSucceeded);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 0);
}

// Their training has no state that it could give them.
TEST_F(CoordinatorInPlaceTest, NewcomersMayOnlyReplaceLostNodes) {
  begin_in_place(1, 3);
  comes("b", 0);
  for (int i = 0; i < 4; ++i) {
    after(900);
  }
  runs_in_place();
  coordinator->let_members_change(Newcomers::kReplaceLost);
  comes("c", 0);
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().changes, 0);
  EXPECT_EQ(decision().members.size(), 2U);
  dead.insert(2);
  after(600);
  EXPECT_EQ(after(600).changes, 1);
  EXPECT_EQ(decision().members.back().ticket, 3) << "it has waited";
  EXPECT_FALSE(is_left_out(3)) << "without the next loss nobody would take it in";
}

// Otherwise a typo in the launcher that is started in a lost node's place would end the job.
TEST_F(CoordinatorInPlaceTest, ANewcomerWithOtherFlagsEndsAlone) {
  begin_in_place(1, 2);
  comes("b", 0);
  runs_in_place();
  dead.insert(2);
  after(600);
  after(600);
  comes("c", 0);
  EXPECT_EQ(after(100).members.back().ticket, 3);
  view(3).progress = rendezvous::Progress::kMet;
  reports(3, NodeReport::End::kFailed, program::kWrongUse);
  view(3).report->report.failure->is_final = true;
  view(3).report->report.failure->message = "seed: this new process has 2";
  after(100);
  EXPECT_EQ(decision().phase, Phase::kRunning);
  EXPECT_EQ(decision().changes, 3);
  EXPECT_EQ(decision().losses, 2);
  EXPECT_EQ(decision().members.size(), 1U);
  EXPECT_EQ(decision().change, "node 1 (c) was removed: its ranks do not fit the others");
  EXPECT_EQ(decision().evicted.at(3).code, program::kWrongUse);
  EXPECT_THAT(decision().evicted.at(3).text, HasSubstr("seed: this new process has 2"));
  view(3).left = true;
  EXPECT_FALSE(after(100).evicted.contains(3)) << "it has read it";
  EXPECT_TRUE(coordinator->is_done_with(3));
}

// Launchers that were turned away cannot go on elsewhere, so the node that is left is no minority.
TEST_F(CoordinatorInPlaceTest, TwoNewcomersWithOtherFlagsLeaveTheNodeThatRuns) {
  begin_in_place(1, 3);
  for (int i = 0; i < 4; ++i) {
    after(900);
  }
  runs_in_place();
  comes("b", 0);
  comes("c", 0);
  after(100);
  ASSERT_EQ(after(100).members.size(), 3U);
  for (const int64_t ticket : {2, 3}) {
    reports(ticket, NodeReport::End::kFailed, program::kWrongUse);
    view(ticket).report->report.failure->is_final = true;
  }
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 1U);
}

// Its ranks have worked with the others since the change before.
TEST_F(CoordinatorInPlaceTest, WrongUseOfANodeThatJoinedBeforeTheLastChangeEndsTheRound) {
  begin_in_place(1, 3);
  for (int i = 0; i < 4; ++i) {
    after(900);
  }
  runs_in_place();
  comes("b", 0);
  after(100);
  view(2).progress = rendezvous::Progress::kMet;
  comes("c", 0);
  ASSERT_EQ(after(100).changes, 2);
  reports(2, NodeReport::End::kFailed, program::kWrongUse);
  view(2).report->report.failure->is_final = true;
  EXPECT_EQ(after(100).phase, Phase::kStopping);
}

TEST_F(CoordinatorInPlaceTest, WrongUseOfANodeThatWasThereFromTheBeginningEndsTheRound) {
  begin_in_place(1, 2);
  comes("b", 0);
  runs_in_place();
  reports(2, NodeReport::End::kFailed, program::kWrongUse);
  view(2).report->report.failure->is_final = true;
  EXPECT_EQ(after(100).phase, Phase::kStopping);
}

// Such as ranks on GPUs.
TEST_F(CoordinatorInPlaceTest, RanksThatCannotRegroupStartAgain) {
  begin_in_place(1, 2);
  comes("b", 0);
  after(100);
  dead.insert(2);
  after(600);
  EXPECT_EQ(after(600).phase, Phase::kStopping);
}

TEST_F(CoordinatorInPlaceTest, AMemberThatReportsInPlaceEndsTheRound) {
  begin_in_place(1, 2);
  comes("b", 0);
  runs_in_place();
  reports(2, NodeReport::End::kFailed, 3);
  EXPECT_EQ(after(100).phase, Phase::kStopping);
  reports(1, NodeReport::End::kStopped);
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().round, 1);
  EXPECT_EQ(decision().changes, 0);
}

class CoordinatorStaticInPlaceTest : public CoordinatorTest {
 protected:
  // Nodes "a" to "c" with the tickets and ranks 1, 0; 2, 1; and 3, 2.
  void run_three() {
    begin_static_in_place(3);
    comes("b", 1);
    comes("c", 2);
    runs_in_place();
  }
  void lose(int64_t ticket) {
    dead.insert(ticket);
    after(600);
    after(600);
  }
};

TEST_F(CoordinatorStaticInPlaceTest, RanksWaitForTheSameNode) {
  run_three();
  lose(2);
  EXPECT_EQ(decision().phase, Phase::kRunning);
  EXPECT_EQ(decision().losses, 1);
  EXPECT_EQ(decision().changes, 0);
  EXPECT_EQ(decision().change, "node 1 (b) was lost: no heartbeat for 1 s");
  EXPECT_EQ(decision().note, "2 of 3 nodes have joined; missing: --node_rank 1");
  comes("d", 1);
  EXPECT_EQ(after(100).changes, 1);
  EXPECT_EQ(decision().round, 0);
  EXPECT_EQ(decision().change, "node 1 (b) was lost: no heartbeat for 1 s, d (pid 7) joined");
  ASSERT_EQ(decision().members.size(), 3U);
  EXPECT_EQ(decision().members[1].ticket, 4);
  EXPECT_EQ(decision().members[1].name, "node 1 (d)");
}

TEST_F(CoordinatorStaticInPlaceTest, ALauncherThatComesBeforeTheLossIsNoticedWaitsForIt) {
  run_three();
  dead.insert(2);
  comes("b", 1);
  EXPECT_EQ(after(100).changes, 0);
  EXPECT_EQ(decision().phase, Phase::kRunning);
  EXPECT_EQ(after(600).changes, 0);
  EXPECT_EQ(after(600).changes, 1);
  EXPECT_EQ(decision().members[1].ticket, 4);
  EXPECT_FALSE(decision().evicted.contains(4));
}

TEST_F(CoordinatorStaticInPlaceTest, ALauncherWhoseRankIsTakenIsRefused) {
  run_three();
  const int64_t fourth = comes("d", 1);
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(after(500).evicted.contains(fourth));
  }
  EXPECT_EQ(after(500).evicted.at(fourth).text, "the job is already running with another --node_rank=1");
  EXPECT_EQ(decision().evicted.at(fourth).exit_code(), program::kWrongUse);
  EXPECT_EQ(decision().phase, Phase::kRunning);
  EXPECT_EQ(decision().changes, 0);
}

TEST_F(CoordinatorStaticInPlaceTest, ALauncherThatIsNeededWaitsForOthersThatAreMissing) {
  begin_static_in_place(5);
  for (const int64_t rank : {1, 2, 3, 4}) comes("b", rank);
  runs_in_place();
  dead.insert(4);
  lose(5);
  const int64_t back = comes("d", 3);
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(after(500).evicted.contains(back));
  }
  EXPECT_EQ(decision().note, "4 of 5 nodes have joined; missing: --node_rank 4");
  const int64_t last = comes("e", 4);
  EXPECT_EQ(after(100).changes, 1);
  ASSERT_EQ(decision().members.size(), 5U);
  EXPECT_EQ(decision().members[3].ticket, back);
  EXPECT_EQ(decision().members[4].ticket, last);
}

// A user who sees that it waits may end it.
TEST_F(CoordinatorStaticInPlaceTest, ASignalToALauncherThatWaitsForAPlaceEndsItAlone) {
  run_three();
  const int64_t fourth = comes("d", 1);
  after(100);
  reports(fourth, NodeReport::End::kInterrupted);
  EXPECT_EQ(after(100).evicted.at(fourth).exit_code(), 128 + SIGTERM);
  lose(2);
  EXPECT_EQ(decision().phase, Phase::kRunning);
  EXPECT_EQ(decision().members[1].ticket, 2);
  EXPECT_EQ(decision().note, "2 of 3 nodes have joined; missing: --node_rank 1");
}

TEST_F(CoordinatorStaticInPlaceTest, ASignalToALauncherThatWaitsForAPlaceDoesNotHinderTheNextRound) {
  run_three();
  const int64_t fourth = comes("d", 1);
  reports(3, NodeReport::End::kFailed, 1);
  EXPECT_EQ(after(100).phase, Phase::kStopping);
  for (const int64_t ticket : {1, 2}) reports(ticket, NodeReport::End::kStopped);
  reports(fourth, NodeReport::End::kInterrupted);
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().round, 1);
  EXPECT_EQ(decision().evicted.at(fourth).exit_code(), 128 + SIGTERM);
}

TEST_F(CoordinatorStaticInPlaceTest, ANodeThatDoesNotComeBackEndsTheJob) {
  run_three();
  lose(3);
  after_the_join_timeout();
  EXPECT_EQ(decision().phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), program::kPeerFailed);
  EXPECT_EQ(end().text, "not complete within 10 s: 2 of 3 nodes have joined; missing: --node_rank 2");
}

// Such as ranks on GPUs.
TEST_F(CoordinatorStaticInPlaceTest, RanksThatCannotRegroupStartAgainWithTheSameNodes) {
  begin_static_in_place(2);
  comes("b", 1);
  after(100);
  lose(2);
  EXPECT_EQ(decision().phase, Phase::kStopping);
  reports(1, NodeReport::End::kStopped);
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kForming);
  comes("b", 1);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().round, 1);
  EXPECT_EQ(decision().members[1].ticket, 3);
}

// The workers of the others are done: a new round would wait for a node in vain, or train again.
TEST_F(CoordinatorStaticInPlaceTest, ANodeThatIsLostWhenTheOthersHaveEndedEndsTheJob) {
  run_three();
  coordinator->let_round_end();
  for (const int64_t ticket : {1, 2}) reports(ticket, NodeReport::End::kSucceeded);
  lose(3);
  after(100);
  EXPECT_EQ(decision().phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), program::kPeerFailed);
  EXPECT_EQ(end().text, "node 2 (c) was lost: no heartbeat for 1 s");
}

TEST_F(CoordinatorStaticInPlaceTest, ASignalToOneOfThemEndsTheJob) {
  run_three();
  reports(2, NodeReport::End::kInterrupted);
  EXPECT_EQ(after(100).phase, Phase::kStopping);
  for (const int64_t ticket : {1, 3}) reports(ticket, NodeReport::End::kStopped);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 128 + SIGTERM);
}

}  // namespace
}  // namespace narrowcast::launcher
