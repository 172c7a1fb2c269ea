#include "ops/comm/node/node_layout.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace narrowcast::node {
namespace {

using ::testing::ElementsAre;

TEST(NodeLayout, CountsNodesInTheOrderOfTheirFirstRanks) {
  const NodeLayout layout({7, 3, 7, 3, 3});
  EXPECT_EQ(layout.world_size(), 5);
  EXPECT_EQ(layout.nodes(), 2);
  EXPECT_THAT(layout.ranks_of(0), ElementsAre(0, 2));
  EXPECT_THAT(layout.ranks_of(1), ElementsAre(1, 3, 4));
  EXPECT_EQ(layout.node_of(4), 1);
  EXPECT_EQ(layout.local_rank_of(4), 2);
  EXPECT_TRUE(layout.has_levels());
  EXPECT_EQ(layout.text(), "2 + 3");
  EXPECT_EQ(layout, NodeLayout({0, 1, 0, 1, 1}));
}

TEST(NodeLayout, HasAsManySegmentsAsTheSmallestNodeRanks) {
  const NodeLayout layout({0, 0, 0, 1, 1});
  EXPECT_EQ(layout.segments(), 2);
  EXPECT_THAT(layout.owners_of(0), ElementsAre(0, 3));
  EXPECT_THAT(layout.owners_of(1), ElementsAre(1, 4));
}

TEST(NodeLayout, TakesConsecutiveRanksForANode) {
  EXPECT_EQ(NodeLayout::of_size(5, 2), NodeLayout({0, 0, 1, 1, 2}));
  EXPECT_EQ(NodeLayout::of_size(8, 4).text(), "2 x 4");
  EXPECT_EQ(NodeLayout::of_size(3, 9).nodes(), 1);
  EXPECT_THROW(NodeLayout::of_size(3, 0), c10::ValueError);
  EXPECT_THROW(NodeLayout({}), c10::ValueError);
}

TEST(NodeLayout, IsFlatWhereEveryRankIsANode) {
  const NodeLayout flat = NodeLayout::flat(3);
  EXPECT_FALSE(flat.has_levels());
  EXPECT_EQ(flat.segments(), 1);
  EXPECT_THAT(flat.owners_of(0), ElementsAre(0, 1, 2));
  EXPECT_EQ(flat.text(), "3 x 1");
}

}  // namespace
}  // namespace narrowcast::node
