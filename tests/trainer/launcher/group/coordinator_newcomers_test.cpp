// Nodes that join a job whose ranks live on, and whose own ranks still start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/launcher/group/coordinator_fixture.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

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
  view(2).ready = true;
  for (int i = 0; i < 5; ++i) {
    after(500);
  }
  const auto lose_a_newcomer = [&](bool is_ready) {
    const int64_t ticket = comes("c", 0);
    ASSERT_EQ(after(100).members.size(), 3U);
    view(ticket).ready = is_ready;
    dead.insert(ticket);
    after(600);
    after(600);
    EXPECT_EQ(after(100).members.size(), 2U);
  };
  lose_a_newcomer(false);
  EXPECT_EQ(decision().losses, 0);
  lose_a_newcomer(true);
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

// Else the one that is ready would wait until the ranks of the next one are.
TEST_F(CoordinatorNewcomersTest, ANewcomerWaitsWhileRanksTakeInOneThatIsReady) {
  begin_alone(3);
  runs_in_place();
  const int64_t first = comes("b", 0);
  ASSERT_EQ(after(100).members.size(), 2U);
  view(first).ready = true;
  after(100);
  comes("c", 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(after(500).members.size(), 2U);
  }
  after(500);
  EXPECT_EQ(after(500).members.size(), 3U);
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
