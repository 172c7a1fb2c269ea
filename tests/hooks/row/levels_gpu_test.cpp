// The link that hooks use on GPUs, over NCCL.
#include "hooks/row/levels.h"

#include <gtest/gtest.h>

#include "ops/comm/link/link.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TEST(CudaHookLink, IsMeasuredWhereItIsNotGiven) {
  testing::run_nccl_ranks(3, [](int64_t, const Group& group) {
    const NodeLayout layout = NodeLayout::flat(3);
    const auto given = find_hook_link({group, {.link_gbit = 7, .link_us = 30}}, layout).between_nodes;
    ASSERT_TRUE(given.has_value());
    EXPECT_DOUBLE_EQ(given->seconds_per_hop, 30e-6);
    EXPECT_DOUBLE_EQ(given->seconds_per_byte, 8e-9 / 7);
    EXPECT_EQ(collectives::measuring_bytes_sent(group), 0) << "nothing was left to measure";
    const auto measured = find_hook_link({group}, layout).between_nodes;
    EXPECT_GT(collectives::measuring_bytes_sent(group), 0);
    EXPECT_NE(measured, collectives::LinkCost::of_gpus(1));
    const auto partly = find_hook_link({group, {.link_us = 30}}, layout).between_nodes;
    EXPECT_EQ(partly->seconds_per_byte, measured->seconds_per_byte);
    EXPECT_DOUBLE_EQ(partly->seconds_per_hop, 30e-6);
  });
}

}  // namespace
}  // namespace narrowcast::hooks
