#include "trainer/train/bench/nodes.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::bench {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;

TEST(Nodes, AreRanksInARow) {
  EXPECT_THAT(nodes_in_a_row({3, 3, 3}), ElementsAre(0, 0, 0));
  EXPECT_THAT(nodes_in_a_row({1, 1, 1}), ElementsAre(0, 1, 2));
  EXPECT_THAT(nodes_in_a_row({2, 2, 3, 3, 3, 1}), ElementsAre(0, 0, 1, 1, 1, 2));
}

TEST(Nodes, MustBePartedByWhatRanksSay) {
  const auto message = [](const std::vector<int64_t>& sizes) {
    return error_message<c10::ValueError>([&] { nodes_in_a_row(sizes); });
  };
  EXPECT_THAT(message({2, 1, 1}), HasSubstr("LOCAL_WORLD_SIZE: rank 1 has 1, but rank 0, of the same node, 2"));
  EXPECT_THAT(message({2, 2, 2}), HasSubstr("LOCAL_WORLD_SIZE: rank 2 has 2, but there are only 3 ranks"));
  EXPECT_THAT(message({0}), HasSubstr("rank 0 has 0"));
}

TEST(Nodes, HaveTheirRanksCounted) {
  EXPECT_THAT(ranks_per_node({0, 0, 1, 1, 1, 2}), ElementsAre(2, 3, 1));
  EXPECT_THAT(ranks_per_node({0, 1, 0, 1}), ElementsAre(2, 2));
}

TEST(Nodes, AreTheSameOnAllRanks) {
  std::vector<std::vector<int64_t>> nodes(3);
  testing::run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    WorkerEnv env;
    env.local_world_size = rank == 0 ? 1 : 2;
    nodes[static_cast<size_t>(rank)] = nodes_by_rank(group, env);
  });
  for (const auto& of_rank : nodes) {
    EXPECT_THAT(of_rank, ElementsAre(0, 1, 1));
  }
}

}  // namespace
}  // namespace narrowcast::bench
