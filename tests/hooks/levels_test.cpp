#include "hooks/levels.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TEST(FindHookLink, TakesWhatIsGivenAndSendsNothing) {
  run_ranks(4, [](int64_t rank, const Group& group) {
    if (rank != 0) return;  // Whatever rank 0 waited for would not come.
    const HookOptions options{group, {.link_gbit = 5, .link_us = 20}};
    const auto link = find_hook_link(options, NodeLayout::of_size(4, 2));
    EXPECT_DOUBLE_EQ(link.between_nodes->seconds_per_byte, 2 * 1.6e-9) << "two ranks share the card";
    EXPECT_DOUBLE_EQ(link.between_nodes->seconds_per_hop, 20e-6);
    EXPECT_FALSE(link.within_node.has_value());
    EXPECT_FALSE(find_hook_link(options, NodeLayout::of_size(4, 4)).between_nodes.has_value());
  });
}

TEST(FindHookLink, MeasuresWhatIsNotGiven) {
  run_ranks(2, [](int64_t, const Group& group) {
    const NodeLayout layout = NodeLayout::flat(2);
    const auto measured = find_hook_link({group}, layout).between_nodes;
    const auto partly = find_hook_link({group, {.link_us = 20}}, layout).between_nodes;
    EXPECT_EQ(partly->seconds_per_byte, measured->seconds_per_byte);
    EXPECT_DOUBLE_EQ(partly->seconds_per_hop, 20e-6);
  });
}

}  // namespace
}  // namespace narrowcast::hooks
