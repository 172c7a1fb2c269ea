#include "trainer/ddp/sharding/group_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::sharding {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The size of shard s, if its rank owns a segment. Two jobs exchange the first shard.
int64_t numel_of(const node::NodeLayout& layout, int64_t shard) {
  const bool owns = layout.local_rank_of(shard) < layout.segments();
  return !owns ? 0 : shard == 0 ? (int64_t{1} << 20) + 77 : 1000 * shard;
}

struct Exchanged {
  std::vector<at::Tensor> values;  // By shard.
  std::vector<Elements> elements;
  std::vector<int64_t> numels;
};

Exchanged zeros_of(const node::NodeLayout& layout) {
  Exchanged zeros;
  for (int64_t shard = 0; shard < layout.world_size(); ++shard) {
    zeros.numels.push_back(numel_of(layout, shard));
    zeros.values.push_back(at::zeros({zeros.numels.back()}));
    zeros.elements.push_back(Elements({zeros.values.back()}));
  }
  return zeros;
}

at::Tensor values_of(int64_t shard, int64_t numel) {
  return testing::seeded_randn(static_cast<uint64_t>(shard), {numel});
}

// Ranks, ranks per node.
class GroupExchangeOf : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(GroupExchangeOf, AllRanksGetTheShards) {
  const auto [world_size, node_size] = GetParam();
  testing::run_ranks(world_size, [node_size = node_size](int64_t rank, const Group& group) {
    GroupExchange exchange(group, node::find_nodes(group, node_size));
    const Exchanged shards = zeros_of(exchange.layout());
    exchange.set_sizes(shards.numels, shards.numels[0]);
    shards.values[rank].copy_(values_of(rank, shards.numels[rank]));
    exchange.run("a test", shards.elements, nullptr);
    for (int64_t shard = 0; shard < exchange.count(); ++shard) {
      EXPECT_TRUE(at::equal(shards.values[shard], values_of(shard, shards.numels[shard]))) << shard;
    }
  });
}

// All ranks add what is decoded, so that they are equal, and off by at most half a step of the format.
TEST_P(GroupExchangeOf, AllRanksAddTheSameDifferences) {
  const auto [world_size, node_size] = GetParam();
  testing::run_ranks(world_size, [node_size = node_size](int64_t rank, const Group& group) {
    GroupExchange exchange(group, node::find_nodes(group, node_size));
    const Exchanged shards = zeros_of(exchange.layout());
    exchange.set_sizes(shards.numels, shards.numels[0]);
    for (const at::Tensor& values : shards.values) values.fill_(1);
    const Elements minuend({values_of(rank, shards.numels[rank])});
    exchange.add_differences("a test", WireFormat::kInt8B128, minuend, shards.elements, nullptr);
    for (int64_t shard = 0; shard < exchange.count(); ++shard) {
      if (shards.numels[shard] == 0) continue;
      const at::Tensor expected = values_of(shard, shards.numels[shard]);
      const double most = (expected - 1).abs().max().item<double>();
      EXPECT_LT((shards.values[shard] - expected).abs().max().item<double>(), most * (1 + 1.0 / 128) / 254 + 1e-6);
    }
    EXPECT_TRUE(testing::same_on_all_ranks(group, shards.values));
  });
}

// Parts come from the last one to the first.
TEST_P(GroupExchangeOf, ThePartsThatWereWaitedForAreThere) {
  const auto [world_size, node_size] = GetParam();
  testing::run_ranks(world_size, [node_size = node_size](int64_t rank, const Group& group) {
    GroupExchange exchange(group, node::find_nodes(group, node_size));
    const Exchanged shards = zeros_of(exchange.layout());
    exchange.set_sizes(shards.numels, shards.numels[0]);
    shards.values[rank].copy_(values_of(rank, shards.numels[rank]));
    exchange.start("a test", shards.elements, nullptr);
    const at::Tensor expected = values_of(0, shards.numels[0]);
    for (const int64_t begin : {shards.numels[0] - 1, shards.numels[0] / 2, int64_t{0}}) {
      exchange.wait_from(begin);
      EXPECT_TRUE(at::equal(shards.values[0].slice(0, begin), expected.slice(0, begin))) << begin;
    }
    exchange.wait_from(0);  // Nothing is in progress any more.
    exchange.finish();
  });
}

// Each rank takes every other block of all shards. What it gave is 0 afterwards, except in pages with other data.
TEST_P(GroupExchangeOf, ElementsMoveAndLeaveTheirMemory) {
  const auto [world_size, node_size] = GetParam();
  testing::run_ranks(world_size, [node_size = node_size](int64_t rank, const Group& group) {
    constexpr int64_t kBlock = 5000;
    GroupExchange exchange(group, node::find_nodes(group, node_size));
    const Exchanged shards = zeros_of(exchange.layout());
    exchange.set_sizes(shards.numels, shards.numels[0]);
    std::vector<Elements> taken(exchange.count());
    const auto is_taken = [&](int64_t begin) { return begin / kBlock % 2 == rank % 2; };
    for (int64_t shard = 0; shard < exchange.count(); ++shard) {
      for (int64_t begin = 0; begin < shards.numels[shard]; begin += kBlock) {
        const int64_t numel = std::min(kBlock, shards.numels[shard] - begin);
        is_taken(begin) ? taken[shard].add(shards.values[shard].narrow(0, begin, numel)) : taken[shard].add_gap(numel);
      }
    }
    const at::Tensor own = values_of(rank, shards.numels[rank]);
    exchange.move("a test", Elements({own}), taken);
    for (int64_t shard = 0; shard < exchange.count(); ++shard) {
      const at::Tensor all = values_of(shard, shards.numels[shard]);
      for (int64_t begin = 0; begin < shards.numels[shard]; begin += kBlock) {
        const int64_t numel = std::min(kBlock, shards.numels[shard] - begin);
        const at::Tensor expected = is_taken(begin) ? all.narrow(0, begin, numel) : at::zeros({numel});
        EXPECT_TRUE(at::equal(shards.values[shard].narrow(0, begin, numel), expected)) << shard << " " << begin;
      }
    }
    if (rank == 0) {
      EXPECT_LT(own.count_nonzero().item<int64_t>(), own.numel() / 10);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GroupExchangeOf,
                         ::testing::Values(std::pair{2, 1}, std::pair{3, 1}, std::pair{4, 2}, std::pair{4, 3},
                                           std::pair{5, 5}, std::pair{8, 4}),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "_in_nodes_of_" +
                                  std::to_string(info.param.second);
                         });

TEST(GroupExchange, GathersNumbers) {
  testing::run_ranks(3, [](int64_t rank, const Group& group) {
    GroupExchange exchange(group, node::find_nodes(group, 1));
    const std::vector<int64_t> own(rank, -rank - (int64_t{1} << 40));
    const auto all = exchange.all_gather("a test", {0, 1, 2}, own);
    EXPECT_EQ(all, (std::vector<std::vector<int64_t>>{
                       {}, {-1 - (int64_t{1} << 40)}, {-2 - (int64_t{1} << 40), -2 - (int64_t{1} << 40)}}));
  });
}

}  // namespace
}  // namespace narrowcast::sharding
