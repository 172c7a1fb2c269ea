#include "trainer/launcher/group/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Clock::time_point at(int64_t time) { return Clock::time_point(milliseconds(time)); }

NodeView view_of(int64_t ticket, int64_t beats) { return {.ticket = ticket, .beats = beats}; }

TEST(Roster, TellsWhoIsNew) {
  Roster roster(milliseconds(1000));
  EXPECT_EQ(roster.look(at(0), {view_of(1, 1)}).size(), 1U);
  const auto new_ones = roster.look(at(100), {view_of(1, 1), view_of(2, 1)});
  ASSERT_EQ(new_ones.size(), 1U);
  EXPECT_EQ(new_ones[0].ticket, 2);
}

TEST(Roster, GivesUpWhoIsSilentForTooLong) {
  Roster roster(milliseconds(1000));
  roster.look(at(0), {view_of(1, 1), view_of(2, 1)});
  roster.look(at(900), {view_of(1, 2), view_of(2, 1)});
  EXPECT_FALSE(roster.is_lost(2));
  roster.look(at(1001), {view_of(1, 2), view_of(2, 1)});
  EXPECT_FALSE(roster.is_lost(1));
  EXPECT_TRUE(roster.is_lost(2));
  roster.look(at(1002), {view_of(1, 2), view_of(2, 2)});
  EXPECT_TRUE(roster.is_lost(2));  // for good, because its place may be taken
}

TEST(Roster, ExpectsNothingOfThoseThatLeft) {
  Roster roster(milliseconds(1000));
  NodeView gone = view_of(2, 1);
  gone.left = true;
  roster.look(at(0), {view_of(1, 1), gone});
  roster.look(at(5000), {view_of(1, 2), gone});
  EXPECT_FALSE(roster.is_lost(2));
}

TEST(Roster, KnowsReportsByRound) {
  Roster roster(milliseconds(1000));
  NodeView view = view_of(1, 1);
  view.report = RoundReport{.round = 3, .report = {.stopped_ranks = 7}};
  roster.look(at(0), {view});
  EXPECT_EQ(roster.report(1, 3)->stopped_ranks, 7);
  EXPECT_FALSE(roster.report(1, 4));
}

TEST(Roster, TakesASignalForAllRoundsAfterIt) {
  Roster roster(milliseconds(1000));
  NodeView view = view_of(1, 1);
  view.report = RoundReport{.round = 3, .report = {.end = NodeReport::End::kFailed, .signal = 15, .stopped_ranks = 7}};
  roster.look(at(0), {view});
  EXPECT_EQ(roster.report(1, 3)->end, NodeReport::End::kFailed);
  EXPECT_EQ(roster.report(1, 4)->end, NodeReport::End::kInterrupted);
  EXPECT_EQ(roster.report(1, 4)->signal, 15);
  EXPECT_EQ(roster.report(1, 4)->stopped_ranks, 0);
  EXPECT_FALSE(roster.report(1, 2));
}

TEST(Roster, KnowsWhetherTheOthersLeft) {
  Roster roster(milliseconds(1000));
  NodeView gone = view_of(2, 1);
  roster.look(at(0), {view_of(1, 1), gone, view_of(3, 1)});
  EXPECT_FALSE(roster.others_left(1));
  gone.left = true;
  roster.look(at(2000), {view_of(1, 2), gone, view_of(3, 1)});  // the third node is lost
  EXPECT_TRUE(roster.others_left(1));
}

NodeView node(int64_t ticket, int64_t node_rank = 0) {
  const char* const hosts[] = {"h0", "h1", "h2", "h3", "h4", "h5"};
  return {.ticket = ticket, .node = {.host = hosts[ticket], .pid = ticket, .node_rank = node_rank}};
}

Applicants applicants(std::vector<NodeView> nodes) { return {.nodes = std::move(nodes)}; }

std::vector<std::string> names(const std::vector<Member>& members) {
  std::vector<std::string> found;
  for (const Member& member : members) {
    found.push_back(member.name);
  }
  return found;
}

std::unique_ptr<Membership> three_fixed() {
  return make_membership({.backend = "static", .min_nodes = 3, .max_nodes = 3}, {});
}

std::unique_ptr<Membership> two_to_three() {
  return make_membership({.backend = "c10d", .min_nodes = 2, .max_nodes = 3}, {.last_call = milliseconds(1000)});
}

TEST(StaticMembership, WaitsForEveryNodeRank) {
  const auto fixed = three_fixed();
  EXPECT_FALSE(fixed->elastic());
  EXPECT_THAT(fixed->form(applicants({node(1, 0), node(2, 2)})), IsEmpty());
  EXPECT_EQ(fixed->missing(applicants({node(1, 0), node(2, 2)})), "2 of 3 nodes have joined; missing: --node_rank 1");
  // The order is by rank, not by arrival.
  EXPECT_THAT(names(fixed->form(applicants({node(1, 0), node(2, 2), node(3, 1)}))),
              ElementsAre("node 0 (h1)", "node 1 (h3)", "node 2 (h2)"));
}

TEST(StaticMembership, NamesBothThatHaveTheSameRank) {
  const auto fixed = three_fixed();
  EXPECT_EQ(fixed->conflict(applicants({node(1, 0), node(2, 1)})), "");
  EXPECT_EQ(fixed->conflict(applicants({node(1, 0), node(2, 1), node(3, 1)})),
            "two launchers were given --node_rank=1: h2 (pid 2) and h3 (pid 3)");
}

// A launcher that is started again comes before the loss of the one before is noticed.
TEST(StaticMembership, KeepsItsNodesBesideLaterOnesOfTheSameRank) {
  const auto fixed = three_fixed();
  Applicants twins = applicants({node(1, 1), node(2, 0), node(4, 1)});
  twins.before = {{.ticket = 2}, {.ticket = 1}, {.ticket = 3}};
  EXPECT_EQ(fixed->conflict(twins), "");
  EXPECT_FALSE(fixed->enough(twins)) << "nobody has rank 2";
  EXPECT_THAT(fixed->form(twins), IsEmpty());
  twins.nodes.push_back(node(5, 2));
  EXPECT_TRUE(fixed->enough(twins));
  EXPECT_THAT(names(fixed->form(twins)), ElementsAre("node 0 (h2)", "node 1 (h1)", "node 2 (h5)"));
}

// A launcher may have drawn its ticket long before it introduces itself.
TEST(StaticMembership, KeepsItsNodesBesideOnesOfTheSameRankWithSmallerTickets) {
  Applicants twins = applicants({node(1, 1), node(2, 0), node(3, 1), node(4, 2)});
  twins.before = {{.ticket = 2}, {.ticket = 3}, {.ticket = 5}};
  EXPECT_THAT(names(three_fixed()->form(twins)), ElementsAre("node 0 (h2)", "node 1 (h3)", "node 2 (h4)"));
}

TEST(StaticMembership, SurvivesLossesIfItRecoversInPlace) {
  EXPECT_FALSE(three_fixed()->survives_losses());
  const GroupSettings in_place = {.backend = "static", .min_nodes = 3, .max_nodes = 3, .in_place = true};
  EXPECT_TRUE(make_membership(in_place, {})->survives_losses());
  EXPECT_FALSE(make_membership(in_place, {})->elastic());
}

TEST(ElasticMembership, TakesAtOnceAsManyAsItMay) {
  EXPECT_THAT(names(two_to_three()->form(applicants({node(1), node(2), node(3)}))),
              ElementsAre("node 0 (h1)", "node 1 (h2)", "node 2 (h3)"));
  EXPECT_EQ(two_to_three()->form(applicants({node(1), node(2), node(3), node(4)})).size(), 3U);
}

TEST(ElasticMembership, WaitsForTheLastCallBeforeTheFirstRound) {
  Applicants two = applicants({node(1), node(2)});
  two.enough = milliseconds(999);
  EXPECT_THAT(two_to_three()->form(two), IsEmpty());
  EXPECT_EQ(two_to_three()->missing(two), "2 nodes have joined; waiting for up to 3");
  two.enough = milliseconds(1000);
  EXPECT_EQ(two_to_three()->form(two).size(), 2U);
}

TEST(ElasticMembership, DoesNotWaitAgainForLaterRounds) {
  Applicants two = applicants({node(1), node(3)});
  two.before = {{.ticket = 1}, {.ticket = 2}, {.ticket = 3}};
  EXPECT_THAT(names(two_to_three()->form(two)), ElementsAre("node 0 (h1)", "node 1 (h3)"));
}

TEST(ElasticMembership, KeepsTheOrderOfThoseThatStay) {
  Applicants three = applicants({node(1), node(4), node(5)});
  three.before = {{.ticket = 5}, {.ticket = 1}};
  EXPECT_THAT(names(two_to_three()->form(three)), ElementsAre("node 0 (h5)", "node 1 (h1)", "node 2 (h4)"));
}

TEST(ElasticMembership, NeedsTheFewest) {
  EXPECT_THAT(two_to_three()->form(applicants({node(1)})), IsEmpty());
  EXPECT_EQ(two_to_three()->missing(applicants({node(1)})), "1 node has joined of at least 2");
}

}  // namespace
}  // namespace narrowcast::launcher
