#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/launcher/group/fitting_nodes.h"

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NodesThatFit, AreAllIfTheNumberDoesNotMatterOrFits) {
  const std::vector<WaitingNode> waiting = {{.ticket = 2, .ranks = 3}, {.ticket = 5, .ranks = 4}};
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 2}), ElementsAre(2, 5));
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 2, .ranks_divide = 18}), ElementsAre(2, 5));
  EXPECT_THAT(nodes_that_fit({}, {.ranks = 2, .ranks_divide = 18}), IsEmpty());
}

TEST(NodesThatFit, MakeTheLargestNumberOfRanks) {
  const std::vector<WaitingNode> waiting = {
      {.ticket = 2, .ranks = 1}, {.ticket = 3, .ranks = 4}, {.ticket = 4, .ranks = 2}};
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 2, .ranks_divide = 12}), ElementsAre(3)) << "6 of 9";
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 2, .ranks_divide = 10}), ElementsAre(2, 4)) << "5";
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 2, .ranks_divide = 2}), IsEmpty());
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 2, .ranks_divide = 11}), IsEmpty()) << "no number fits";
}

TEST(NodesThatFit, AreTheFirstOfEqualOnesAndAsManyAsPossible) {
  EXPECT_THAT(nodes_that_fit({{.ticket = 7, .ranks = 2}, {.ticket = 8, .ranks = 2}}, {.ranks = 1, .ranks_divide = 3}),
              ElementsAre(7));
  const std::vector<WaitingNode> waiting = {
      {.ticket = 2, .ranks = 2}, {.ticket = 3, .ranks = 1}, {.ticket = 4, .ranks = 1}};
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 1, .ranks_divide = 3}), ElementsAre(3, 4));
}

// Ranks that need others begin with an error, rather than waiting for ever.
TEST(NodesThatFit, AreAllIfTooFewFit) {
  const std::vector<WaitingNode> waiting = {{.ticket = 2, .ranks = 1}, {.ticket = 3, .ranks = 1}};
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 2, .ranks_divide = 3, .missing = 1}), ElementsAre(2));
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 2, .ranks_divide = 3, .missing = 2}), ElementsAre(2, 3));
}

// The host must not be held up.
TEST(NodesThatFit, AreFoundAtOnceAmongMany) {
  std::vector<WaitingNode> waiting;
  for (int64_t ticket = 2; ticket < 3000; ++ticket) {
    waiting.push_back({.ticket = ticket, .ranks = ticket});
  }
  EXPECT_THAT(nodes_that_fit(waiting, {.ranks = 1, .ranks_divide = int64_t{1} << 12}), ::testing::Not(IsEmpty()));
}

}  // namespace
}  // namespace narrowcast::launcher
