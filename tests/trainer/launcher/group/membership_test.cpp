#include "trainer/launcher/group/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
  EXPECT_EQ(fixed->missing(applicants({node(1, 0), node(2, 2)})), "2 of 3 nodes are here; missing is --node_rank 1");
  // In the order of their ranks, not of their arrival.
  EXPECT_THAT(names(fixed->form(applicants({node(1, 0), node(2, 2), node(3, 1)}))),
              ElementsAre("node 0 (h1)", "node 1 (h3)", "node 2 (h2)"));
}

TEST(StaticMembership, NamesBothThatHaveTheSameRank) {
  const auto fixed = three_fixed();
  EXPECT_EQ(fixed->conflict(applicants({node(1, 0), node(2, 1)})), "");
  EXPECT_EQ(fixed->conflict(applicants({node(1, 0), node(2, 1), node(3, 1)})),
            "two launchers were given --node_rank=1: h2 (pid 2) and h3 (pid 3)");
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
  EXPECT_EQ(two_to_three()->missing(two), "2 nodes are here; waiting for more, up to 3");
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
  EXPECT_EQ(two_to_three()->missing(applicants({node(1)})), "1 node is here of at least 2");
}

}  // namespace
}  // namespace narrowcast::launcher
