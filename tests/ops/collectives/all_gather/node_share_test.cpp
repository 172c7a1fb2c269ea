#include "ops/collectives/all_gather/node_share.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using ::testing::AllOf;
using ::testing::HasSubstr;

NodeShareOptions share_of(const std::shared_ptr<const node::FoundNodes>& nodes, int64_t bytes) {
  return {.name = "share", .nodes = nodes, .bytes = bytes, .own = {{.begin = 0, .size = 1}}};
}

TEST(NodeShare, WhatARankWritesTheOthersOfItsNodeRead) {
  for (const auto& [world_size, node_size] : {std::pair<int64_t, int64_t>{2, 2}, {4, 3}, {8, 4}}) {
    testing::run_ranks(world_size, [&](int64_t rank, const GroupPtr& group) {
      const auto nodes = node::find_nodes(group, node_size);
      const auto first = share_on_node(group, share_of(nodes, 100));
      const auto second = share_on_node(group, share_of(nodes, 5000));
      const int64_t own = nodes->memory->local_rank();
      first.get()[own] = static_cast<std::byte>(rank + 1);
      second.get()[4999 - own] = static_cast<std::byte>(rank + 11);
      testing::wait_for_ranks(group);
      for (const int64_t other : nodes->layout.ranks_of(nodes->layout.node_of(rank))) {
        const int64_t local_rank = nodes->layout.local_rank_of(other);
        EXPECT_EQ(first.get()[local_rank], static_cast<std::byte>(other + 1));
        EXPECT_EQ(second.get()[4999 - local_rank], static_cast<std::byte>(other + 11));
      }
    });
  }
}

// The error is that of the rank that makes the memory. Another call does not meet what this one has left.
TEST(NodeShare, MoreThanTheMachineHasIsRefusedOnAllRanks) {
  testing::run_ranks(4, [](int64_t rank, const GroupPtr& group) {
    const auto nodes = node::find_nodes(group, 2);
    const int64_t wanted = nodes->layout.node_of(rank) == 1 ? int64_t{1} << 60 : 100;
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { share_on_node(group, share_of(nodes, wanted)); }),
                AllOf(HasSubstr("share on rank 2: shared memory of 1152921504606846976 bytes ("),
                      HasSubstr("bytes are available)")));
    const auto memory = share_on_node(group, share_of(nodes, 100));
    memory.get()[99] = std::byte{1};
  });
}

}  // namespace
}  // namespace narrowcast::collectives
