#include "ops/comm/link/link.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/comm/connections/group/connections.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using node::NodeLayout;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

void expect_costs(const std::optional<LinkCost>& cost, bool is_there) {
  ASSERT_EQ(cost.has_value(), is_there);
  if (is_there) {
    EXPECT_GT(cost->seconds_per_hop, 0);
    EXPECT_GT(cost->seconds_per_byte, 0);
    EXPECT_LT(cost->seconds_per_byte, 1e-3);
  }
}

class FindLinkOf : public ::testing::TestWithParam<int64_t> {};

TEST_P(FindLinkOf, IsTheSameOnAllRanksAndMeasuredOnce) {
  const int64_t world_size = GetParam();
  for (const int64_t node_size : {int64_t{1}, int64_t{2}, world_size}) {
    SCOPED_TRACE(node_size);
    const NodeLayout layout = NodeLayout::of_size(world_size, node_size);
    std::vector<Link> links(world_size);
    run_ranks(world_size, [&](int64_t rank, const Group& group) {
      const auto link = find_link(group, layout);
      EXPECT_EQ(find_link(group, layout), link);
      links[rank] = *link;
    });
    for (const Link& link : links) {
      expect_costs(link.between_nodes, layout.nodes() > 1);
      expect_costs(link.within_node, layout.has_levels());
      EXPECT_EQ(link.between_nodes, links[0].between_nodes);
      EXPECT_EQ(link.within_node, links[0].within_node);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, FindLinkOf, ::testing::Values(1, 2, 3, 5));

// Ranks 0 and 2 have peers on the other node, ranks 0 and 1 on their own.
TEST(FindLink, CountsWhatItSends) {
  run_ranks(3, [&](int64_t, const Group& group) {
    EXPECT_EQ(measuring_bytes_sent(group), 0);
    const NodeLayout layout({0, 0, 1});
    find_link(group, layout);
    const int64_t sent = measuring_bytes_sent(group);
    EXPECT_GE(sent, 1 << 16) << "a message of the least size";
    find_link(group, layout);
    EXPECT_EQ(measuring_bytes_sent(group), sent) << "measured once";
    count_measuring_bytes(group, 5);
    EXPECT_EQ(measuring_bytes_sent(group), sent + 5);
  });
}

TEST(FindLink, MeasuresAgainWhenTheNumberOfConnectionsChanges) {
  run_ranks(2, [&](int64_t, const Group& group) {
    const NodeLayout layout = NodeLayout::flat(2);
    const auto of_one = find_link(group, layout);
    connections::open_connections(group, 4, layout);
    const int64_t before = measuring_bytes_sent(group);
    const auto of_four = find_link(group, layout);
    EXPECT_NE(of_four, of_one);
    EXPECT_GT(measuring_bytes_sent(group), before);
    EXPECT_EQ(find_link(group, layout), of_four);
    connections::open_connections(group, 1, layout);
    EXPECT_EQ(find_link(group, layout), of_one);
  });
}

TEST(MeasureLink, GrowsItsMessagesUntilOneTakesLongEnough) {
  const LinkEffort effort{
      .pings = 2, .messages = 2, .message_seconds = 1e-9, .least_bytes = 1 << 16, .most_bytes = 1 << 20};
  run_ranks(2, [&](int64_t rank, const Group& group) {
    const LinkPeers peers{1 - rank, 1 - rank};
    EXPECT_EQ(measure_link(group, peers, effort).message_bytes, 1 << 16) << "any message takes so long";
    LinkEffort patient = effort;
    patient.message_seconds = 1e9;
    const LinkRates rates = measure_link(group, peers, patient);
    EXPECT_EQ(rates.message_bytes, 1 << 20);
    EXPECT_EQ(rates.payload_bytes_sent, 2 * 2 * 16 + (1 << 16) + (1 << 18) + 2 * (1 << 20));
  });
}

TEST(MeasureLink, RanksWithoutPeersLearnTheFigures) {
  std::vector<LinkRates> rates(3);
  run_ranks(3, [&](int64_t rank, const Group& group) {
    const std::optional<LinkPeers> peers = rank == 2 ? std::nullopt : std::optional(LinkPeers{1 - rank, 1 - rank});
    rates[rank] = measure_link(group, peers, {.pings = 2, .messages = 1, .most_bytes = 1 << 16});
  });
  EXPECT_GT(rates[2].cost.seconds_per_byte, 0);
  EXPECT_EQ(rates[2].cost, rates[0].cost);
  EXPECT_EQ(rates[1].cost, rates[0].cost);
}

}  // namespace
}  // namespace narrowcast::collectives
