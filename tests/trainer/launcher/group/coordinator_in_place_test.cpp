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

}  // namespace
}  // namespace narrowcast::launcher
