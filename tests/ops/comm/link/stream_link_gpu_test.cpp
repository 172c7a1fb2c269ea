// The link between GPUs, over NCCL.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <vector>

#include "ops/comm/groups/group.h"
#include "ops/comm/link/link.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast::collectives {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// A collective.
void expect_same_on_all_ranks(const Group& group, const LinkCost& cost) {
  const std::vector<double> least_and_most = greatest_of_ranks(
      group, "comparing", {cost.seconds_per_hop, -cost.seconds_per_hop, cost.seconds_per_byte, -cost.seconds_per_byte});
  EXPECT_EQ(least_and_most[0], -least_and_most[1]);
  EXPECT_EQ(least_and_most[2], -least_and_most[3]);
}

// No link is as fast as a GPU's memory. Ranks that share a GPU communicate by sockets. They take turns of milliseconds
// on the GPU, also with other processes.
void expect_plausible(const LinkCost& cost) {
  EXPECT_GT(cost.seconds_per_hop, 1e-7);
  EXPECT_LT(cost.seconds_per_hop, 1);
  EXPECT_GT(cost.gbit(), 1e-3);
  EXPECT_LT(cost.gbit(), 1e5);
}

// Two of three ranks share a node. The third has no peers within its node.
TEST(CudaStreamLink, IsMeasuredOnceByAllRanks) {
  testing::run_nccl_ranks(3, [](int64_t rank, const Group& group) {
    const node::NodeLayout layout({0, 0, 1});
    const at::Device gpu = *group->getBackend(at::kCUDA)->getBoundDeviceId();
    const auto link = find_link(group, layout, gpu);
    EXPECT_EQ(find_link(group, layout, gpu), link);
    for (const auto& cost : {link->between_nodes, link->within_node}) {
      ASSERT_TRUE(cost.has_value());
      expect_plausible(*cost);
      expect_same_on_all_ranks(group, *cost);
    }
    EXPECT_GE(measuring_bytes_sent(group), rank == 1 || rank == 2 ? 1 << 16 : 2 << 16);
    // Later collectives on the communicator are not affected.
    std::vector<at::Tensor> sum{at::full({1000}, static_cast<double>(rank), at::device(gpu))};
    group->allreduce(sum)->wait();
    EXPECT_TRUE(sum[0].eq(3).all().item<bool>());
  });
}

}  // namespace
}  // namespace narrowcast::collectives
