#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/launcher/group/coordinator_fixture.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using ::testing::HasSubstr;

class CoordinatorSuccessionTest : public CoordinatorTest {
 protected:
  // A round of that many nodes, which all know of each other, and whose ranks can form a new group.
  void run_in_place(int64_t nodes) {
    begin_in_place(1, nodes);
    for (int64_t node = 1; node < nodes; ++node) {
      comes(std::string(1, static_cast<char>('a' + node)), 0);
    }
    runs_in_place();
    EXPECT_TRUE(after(100).changes_in_place);
  }

  // The launcher with ticket 2 takes over from the first. Those in `absent` have not come.
  void take_over(const std::set<int64_t>& absent) {
    const Succession succession = {.decision = decision(), .ticket = 2, .store = "b:1", .lost = {{1, "it was killed"}}};
    coordinator.emplace(describe("b", 0), timeouts, succession);
    for (NodeView& node : views) {
      node.absent = node.ticket == 1 ? "it was killed" : absent.contains(node.ticket) ? "it does not answer" : "";
      node.known = {};
    }
    dead = absent;
    dead.insert(1);
  }

  void expect_minority(const std::string& left) {
    EXPECT_EQ(decision().phase, Phase::kOver);
    EXPECT_EQ(end().cause, GroupEnd::Cause::kAborted);
    EXPECT_EQ(end().code, program::kPeerFailed);
    EXPECT_THAT(end().text, HasSubstr(left + " nodes are left"));
  }
};

TEST_F(CoordinatorSuccessionTest, AHostWithFewerThanHalfEnds) {
  run_in_place(5);
  dead = {3, 4, 5};
  after(1100);
  expect_minority("2 of 5");
}

TEST_F(CoordinatorSuccessionTest, AHostWithHalfGoesOn) {
  run_in_place(4);
  dead = {3, 4};
  EXPECT_EQ(after(1100).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 2U);
}

TEST_F(CoordinatorSuccessionTest, OneAfterAnotherMayBeLost) {
  run_in_place(3);
  dead = {3};
  EXPECT_EQ(after(1100).members.size(), 2U);
  after(100);
  dead = {2, 3};
  EXPECT_EQ(after(1100).members.size(), 1U);
  EXPECT_EQ(decision().phase, Phase::kRunning);
}

// The other two are in the other half of a cut network, but one of them was heard a little longer.
TEST_F(CoordinatorSuccessionTest, AChangeThatNotAllKnowOfDoesNotCount) {
  run_in_place(3);
  dead = {3};
  deaf = {2};
  EXPECT_EQ(after(1100).members.size(), 2U);
  dead = {2, 3};
  after(1100);
  expect_minority("1 of 3");
}

// The newcomer and the other member know of each other, so they are a majority if the network is cut now.
TEST_F(CoordinatorSuccessionTest, AHostIsNoHalfOfMoreThanItWasToldOf) {
  begin_in_place(1, 3);
  comes("b", 0);
  while (after(500).phase == Phase::kForming) {  // The last call for a third node.
  }
  EXPECT_EQ(decision().members.size(), 2U);
  coordinator->let_members_change();
  EXPECT_TRUE(after(100).changes_in_place);
  deaf = {1, 2, 3};
  comes("c", 0);
  EXPECT_EQ(after(100).members.size(), 3U);
  dead = {2, 3};
  after(1100);
  expect_minority("1 of 3");
}

TEST_F(CoordinatorSuccessionTest, AMinorityDoesNotStartAgainEither) {
  run_in_place(3);
  dead = {2, 3};
  reports(1, NodeReport::End::kFailed, program::kPeerFailed);
  after(1100);
  after(100);
  after(100);
  expect_minority("1 of 3");
}

TEST_F(CoordinatorSuccessionTest, ANewHostGoesOnWithTheOthers) {
  run_in_place(3);
  const Decision before = decision();
  take_over({});
  EXPECT_EQ(decision().members.size(), 3U);
  EXPECT_EQ(decision().store, "");
  const Decision& now = after(10);
  EXPECT_EQ(now.phase, Phase::kRunning);
  ASSERT_EQ(now.members.size(), 2U);
  EXPECT_EQ(now.members[0].ticket, 2);
  EXPECT_EQ(now.members[1].ticket, 3);
  EXPECT_EQ(now.round, before.round);
  EXPECT_EQ(now.run_id, before.run_id);
  EXPECT_EQ(now.changes, before.changes + 1);
  EXPECT_EQ(now.losses, before.losses + 1);
  EXPECT_EQ(now.change, "node 0 (a) was lost: it was killed");
  EXPECT_EQ(now.host, 2);
  EXPECT_EQ(now.store, "b:1");
}

// The lost host has decided once more, which this launcher has not read.
TEST_F(CoordinatorSuccessionTest, ANewHostCountsOnFromWhatAnyoneKnows) {
  run_in_place(3);
  take_over({});
  coordinator->learn({.change = {.round = 0, .changes = 2}, .losses = 4}, {});
  EXPECT_EQ(after(10).changes, 4) << "neither 2 nor 3 has the same members";
  EXPECT_EQ(decision().losses, 5);
}

TEST_F(CoordinatorSuccessionTest, ANewHostIgnoresWhatIsKnownOfAnotherRound) {
  run_in_place(3);
  take_over({});
  coordinator->learn({.change = {.round = 1, .changes = 2}, .losses = 4}, {});
  EXPECT_EQ(after(10).changes, 1);
  EXPECT_EQ(decision().losses, 1);
}

TEST_F(CoordinatorSuccessionTest, AllPlacesWhereLaunchersMayComeAreKnown) {
  run_in_place(3);
  coordinator->add_place("endpoint:1");
  coordinator->add_place("endpoint:1");
  take_over({});
  EXPECT_EQ(decision().places, (std::vector<std::string>{"endpoint:1", "b:1"}));
  for (int64_t more = 0; more < kMostPlaces; ++more) {
    coordinator->add_place("c:" + std::to_string(more));
  }
  EXPECT_EQ(std::ssize(decision().places), kMostPlaces);
  EXPECT_EQ(decision().places.front(), "endpoint:1");
  EXPECT_EQ(decision().places[1], "c:1");
}

TEST_F(CoordinatorSuccessionTest, ANewHostTakesNewcomersIn) {
  run_in_place(3);
  take_over({});
  after(10);
  comes("d", 0);
  EXPECT_EQ(after(10).members.size(), 3U);
}

// A member has reported before the new host could change the members.
TEST_F(CoordinatorSuccessionTest, ARoundThatANewHostStartsAgainHasItsStore) {
  run_in_place(3);
  take_over({});
  reports(3, NodeReport::End::kFailed, program::kPeerFailed);
  EXPECT_EQ(after(10).phase, Phase::kStopping);
  reports(2, NodeReport::End::kStopped);
  after(10);
  EXPECT_EQ(after(10).phase, Phase::kRunning);
  EXPECT_EQ(decision().members.size(), 2U);
  EXPECT_EQ(decision().store, "b:1");
}

TEST_F(CoordinatorSuccessionTest, ANewHostWithHalfEnds) {
  run_in_place(4);
  take_over({4});
  after(10);
  expect_minority("2 of 4");
}

// Its second loss comes before all know of the first: the members of the lost host's decision count.
TEST_F(CoordinatorSuccessionTest, ANewHostWhoseFollowersLeaveEnds) {
  run_in_place(5);
  take_over({});
  deaf = {3, 4, 5};
  EXPECT_EQ(after(10).members.size(), 4U);
  dead = {1, 3, 4, 5};
  after(1100);
  expect_minority("1 of 5");
}

}  // namespace
}  // namespace narrowcast::launcher
