#include "trainer/launcher/group/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/trainer/launcher/group/coordinator_fixture.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using ::testing::HasSubstr;

TEST_F(CoordinatorTest, RunsAStaticJobToItsEnd) {
  begin_static(2);
  EXPECT_EQ(after(100).phase, Phase::kForming);
  EXPECT_THAT(decision().note, HasSubstr("missing: --node_rank 1"));
  comes("b", 1);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 2U);
  reports(1, NodeReport::End::kSucceeded);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  reports(2, NodeReport::End::kSucceeded);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 0);
  EXPECT_FALSE(coordinator->everyone_left());
  view(2).left = true;
  after(100);
  EXPECT_TRUE(coordinator->everyone_left());
}

TEST_F(CoordinatorTest, RestartsAllNodesTogetherAsOftenAsIsAllowed) {
  run_two_static(1);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(decision().phase, Phase::kRunning);
    EXPECT_EQ(decision().round, round);
    reports(2, NodeReport::End::kFailed, 7);
    EXPECT_EQ(after(100).phase, Phase::kStopping);
    EXPECT_EQ(after(100).phase, Phase::kStopping);  // until the other node's workers have ended too
    reports(1, NodeReport::End::kStopped);
    after(100);
    after(100);
  }
  EXPECT_EQ(decision().phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 7);
  EXPECT_EQ(end().failure->node, "node 1 (b)");
}

TEST_F(CoordinatorTest, DoesNotRestartWhatWouldFailAlike) {
  run_two_static(5);
  reports(2, NodeReport::End::kFailed, 2);
  view(2).report->report.failure->is_final = true;
  reports(1, NodeReport::End::kStopped);
  after(100);
  after(100);
  EXPECT_EQ(decision().phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 2);
  EXPECT_EQ(end().text, "not restarted, because it would fail in the same way");
}

TEST_F(CoordinatorTest, EndsAStaticJobThatLosesANode) {
  run_two_static(5);
  dead.insert(2);
  EXPECT_EQ(after(900).phase, Phase::kRunning);
  EXPECT_EQ(after(200).phase, Phase::kStopping);
  reports(1, NodeReport::End::kStopped);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().text, "node 1 (b) was lost: no heartbeat for 1 s");
  EXPECT_EQ(end().exit_code(), program::kPeerFailed);
  EXPECT_THAT(decision().evicted.at(2).text, HasSubstr("removed this launcher from the job"));
}

TEST_F(CoordinatorTest, EndsAStaticJobThatLosesANodeBetweenRounds) {
  run_two_static(5);
  reports(1, NodeReport::End::kFailed, 7);
  after(100);
  reports(2, NodeReport::End::kStopped);
  dead.insert(2);
  after(1200);  // ends the round and finds the lost node
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_THAT(end().text, HasSubstr("was lost"));
}

TEST_F(CoordinatorTest, ForgetsALauncherThatDiedBeforeTheJobBegan) {
  begin_static(3);
  dead.insert(comes("b", 1));
  after(100);
  after(1200);
  const int64_t started_again = comes("b", 1);
  comes("c", 2);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members[1].ticket, started_again);
}

TEST_F(CoordinatorTest, RefusesTwoNodesOfTheSameRankEverywhere) {
  begin_static(3);
  comes("b", 1);
  after(100);
  comes("c", 1);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), program::kWrongUse);
  EXPECT_EQ(end().text, "two launchers were given --node_rank=1: b (pid 7) and c (pid 7)");
}

TEST_F(CoordinatorTest, RefusesContradictionsEverywhereBeforeTheJobBegins) {
  begin_static(2);
  settings_.max_restarts = 3;
  comes("b", 1);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().text, "launchers disagree: --max_restarts is 0 on node 0, a (pid 7), but 3 on node 1, b (pid 7)");
}

TEST_F(CoordinatorTest, EvictsALatecomerWithoutHarmToTheJob) {
  run_two_static();
  const int64_t third = comes("c", 1);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().evicted.at(third).exit_code(), program::kWrongUse);
}

TEST_F(CoordinatorTest, GivesUpWaitingForNodes) {
  begin_static(2);
  after_the_join_timeout();
  EXPECT_EQ(after(500).phase, Phase::kOver);
  EXPECT_EQ(end().text, "not complete within 10 s: 1 of 2 nodes have joined; missing: --node_rank 1");
  EXPECT_EQ(end().exit_code(), program::kPeerFailed);
}

TEST_F(CoordinatorTest, StopsEverywhereAtASignalToAStaticNode) {
  run_two_static();
  reports(2, NodeReport::End::kInterrupted);
  EXPECT_EQ(after(100).phase, Phase::kStopping);
  reports(1, NodeReport::End::kStopped);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 128 + SIGTERM);
}

TEST_F(CoordinatorTest, StopsAtASignalWhileItWaits) {
  begin_static(3);
  comes("b", 1);
  after(100);
  reports(2, NodeReport::End::kInterrupted);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 128 + SIGTERM);
}

// The signal came before the launcher knew of the round, so it reports for the previous round.
TEST_F(CoordinatorTest, StopsAtASignalThatCrossesTheBeginOfARound) {
  run_two_static();
  reports(1, NodeReport::End::kInterrupted);
  view(1).report->round = -1;
  EXPECT_EQ(after(100).phase, Phase::kStopping);
  reports(2, NodeReport::End::kStopped);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 128 + SIGTERM);
}

TEST_F(CoordinatorTest, ElasticJobLetsANodeLeaveWhoseSignalCrossesTheBeginOfARound) {
  run_two_elastic();
  reports(2, NodeReport::End::kInterrupted);
  view(2).report->round = -1;
  EXPECT_EQ(after(100).phase, Phase::kStopping);
  view(2).left = true;
  reports(1, NodeReport::End::kStopped);
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 1U);
  EXPECT_EQ(end().text, "node 1 (b) left: SIGTERM");
}

TEST_F(CoordinatorTest, ElasticJobEndsAtASignalToItsHostThatCrossesTheBeginOfARound) {
  run_two_elastic();
  reports(1, NodeReport::End::kInterrupted);
  view(1).report->round = -1;
  after(100);
  reports(2, NodeReport::End::kStopped);
  EXPECT_EQ(after(100).phase, Phase::kOver);
  EXPECT_EQ(end().exit_code(), 128 + SIGTERM);
}

TEST_F(CoordinatorTest, ElasticJobBeginsAfterTheLastCall) {
  begin_elastic(2, 3);
  comes("b", 0);
  EXPECT_EQ(after(100).phase, Phase::kForming);
  EXPECT_EQ(after(900).phase, Phase::kForming);
  after(900);
  EXPECT_EQ(after(900).phase, Phase::kRunning);
}

TEST_F(CoordinatorTest, ElasticJobTakesANewcomerIn) {
  begin_elastic(1, 2);
  for (int i = 0; i < 4; ++i) {
    after(900);
  }
  EXPECT_EQ(decision().phase, Phase::kRunning);
  comes("b", 0);
  EXPECT_EQ(after(100).phase, Phase::kStopping);
  reports(1, NodeReport::End::kStopped);
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().round, 1);
  EXPECT_EQ(decision().members.size(), 2U);
  EXPECT_EQ(end().text, "b (pid 7) joined");
}

TEST_F(CoordinatorTest, ElasticJobGoesOnWithoutALostNode) {
  run_two_elastic();
  for (int64_t loss = 0; loss < 3; ++loss) {  // more often than --max_restarts: these are not failures
    const int64_t last = static_cast<int64_t>(views.size());
    dead.insert(last);
    reports(1, NodeReport::End::kFailed, program::kPeerFailed);
    EXPECT_EQ(after(500).phase, Phase::kStopping);
    after(600);
    EXPECT_EQ(after(100).phase, Phase::kRunning);
    EXPECT_EQ(decision().members.size(), 1U);
    comes("c", 0);
    after(100);
    reports(1, NodeReport::End::kStopped);
    after(100);
    EXPECT_EQ(after(100).phase, Phase::kRunning);
    EXPECT_EQ(decision().members.size(), 2U);
  }
}

TEST_F(CoordinatorTest, ElasticJobLetsANodeLeave) {
  run_two_elastic();
  reports(2, NodeReport::End::kInterrupted);
  after(100);
  EXPECT_EQ(decision().evicted.at(2).exit_code(), 128 + SIGTERM);
  reports(1, NodeReport::End::kStopped);
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 1U);
}

TEST_F(CoordinatorTest, ElasticJobWaitsForTheFewestAndGivesUp) {
  begin_elastic(2, 2);
  comes("b", 0);
  after(100);
  dead.insert(2);
  reports(1, NodeReport::End::kFailed, program::kPeerFailed);
  after(1200);
  EXPECT_EQ(after(100).phase, Phase::kForming);
  after_the_join_timeout();
  EXPECT_EQ(decision().phase, Phase::kOver);
  EXPECT_THAT(end().text, HasSubstr("1 node has joined of at least 2"));
}

TEST_F(CoordinatorTest, ElasticJobKeepsASpareUntilAPlaceIsFree) {
  begin_elastic(2, 2);
  comes("b", 0);
  comes("c", 0);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 2U);
  dead.insert(2);
  after(1200);
  reports(1, NodeReport::End::kStopped);
  after(100);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members[1].ticket, 3);
}

TEST_F(CoordinatorTest, ElasticJobEvictsASpareInTheEnd) {
  begin_elastic(1, 1);
  settings_.max_nodes = 1;
  comes("b", 0);
  EXPECT_EQ(after(100).phase, Phase::kRunning);
  after_the_join_timeout();
  EXPECT_EQ(decision().evicted.at(2).text, "no place became free within 10 s");
}

}  // namespace
}  // namespace narrowcast::launcher
