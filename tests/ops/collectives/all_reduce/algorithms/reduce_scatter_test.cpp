#include "ops/collectives/all_reduce/algorithms/reduce_scatter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/comm/engine/engine.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using node::NodeLayout;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr codec::wire::Rounding kAtRandom{true, 42, 3, 7};

std::vector<at::Tensor> own_arrays_of(int64_t ranks, int64_t numel) {
  at::manual_seed(ranks);
  std::vector<at::Tensor> arrays;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    arrays.push_back(at::randn({numel}) * at::exp2(at::arange(numel).div(300, "floor").remainder(20) - 10));
  }
  return arrays;
}

// The residuals of a rank's call, float32 and not 0.
struct OwnResiduals {
  at::Tensor own;
  at::Tensor mean;

  OwnResiduals(const SentParts& parts, int64_t rank)
      : own(at::full({parts.own.numel}, 1e-3 * static_cast<double>(rank + 1))),
        mean(at::full({parts.mean.numel}, 2e-3 * static_cast<double>(rank + 1))) {}

  Residuals pointers() const { return {own.mutable_data_ptr<float>(), mean.mutable_data_ptr<float>(), {own, mean}}; }
};

struct ShardCase {
  AllReduceJobOptions options = {};
  int64_t node_size = 1;
  codec::wire::Rounding rounding = {};
  bool has_residuals = false;
};

struct ShardResult {
  at::Tensor shard;
  at::Tensor mean_residual;
  int64_t payload = 0;
};

// By rank: the elements of SentParts::mean after an exchange.
std::vector<ShardResult> shards_of_means(const ShardCase& given, const std::vector<at::Tensor>& arrays, Result result) {
  const auto ranks = static_cast<int64_t>(arrays.size());
  std::vector<ShardResult> results(arrays.size());
  run_ranks(ranks, [&](int64_t rank, const Group& group) {
    AllReduceJobOptions options = given.options;
    options.name = "a mean";
    options.rank = rank;
    options.world_size = ranks;
    options.numel = arrays[rank].numel();
    options.nodes = node::find_nodes(group, given.node_size);
    options.result = result;
    const SentParts parts = sent_parts(options.nodes->layout, rank, options.numel);
    const OwnResiduals residuals(parts, rank);
    const auto job = std::make_shared<AllReduceJob>(options, JobMemory{});
    job->set_call({arrays[rank].clone(), given.rounding, given.has_residuals ? residuals.pointers() : Residuals{}});
    const auto engine = engine::Engine::for_group(group);
    const auto future = engine->submit(job);
    future->waitAndThrow();
    results[rank] = {future->value().toTensor().narrow(0, parts.mean.begin, parts.mean.numel), residuals.mean,
                     job->payload_bytes()};
  });
  return results;
}

// Number of ranks, ranks per node, elements.
class ReduceScatterExchangeOf : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(ReduceScatterExchangeOf, HasTheBitsOfTheWholeMean) {
  const auto [ranks, node_size, numel] = GetParam();
  const auto arrays = own_arrays_of(ranks, numel);
  for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
    for (const bool has_residuals : {false, true}) {
      const ShardCase given{{.format = WireFormat::kInt8B128, .link = link}, node_size, {}, has_residuals};
      const auto whole = shards_of_means(given, arrays, Result::kWhole);
      const auto own = shards_of_means(given, arrays, Result::kShardOfWhole);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(at::equal(own[rank].shard, whole[rank].shard)) << rank;
        EXPECT_TRUE(at::equal(own[rank].mean_residual, whole[rank].mean_residual)) << rank;
      }
    }
  }
}

// Without residuals: the mean of node means, of which only the other nodes' are rounded.
TEST_P(ReduceScatterExchangeOf, RoundsOnlyWhatIsSent) {
  const auto [ranks, node_size, numel] = GetParam();
  const auto arrays = own_arrays_of(ranks, numel);
  const NodeLayout layout = NodeLayout::of_size(ranks, node_size);
  const auto results = shards_of_means({{.format = WireFormat::kInt8B128}, node_size}, arrays, Result::kShard);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const SentParts parts = sent_parts(layout, rank, numel);
    std::vector<at::Tensor> of_nodes;
    for (int64_t node = 0; node < layout.nodes(); ++node) {
      const bool is_own = node == layout.node_of(rank);
      const at::Tensor mean =
          layout.has_levels() ? mean_of_node(layout, node, arrays) : arrays[layout.ranks_of(node)[0]];
      const at::Tensor part = mean.narrow(0, parts.mean.begin, parts.mean.numel);
      of_nodes.push_back(is_own ? part : passed_on({}, part, 0, 0, 0));
    }
    EXPECT_TRUE(at::equal(results[rank].shard, mean_in_rank_order(of_nodes))) << rank;
  }
}

std::vector<std::tuple<int64_t, int64_t, int64_t>> shard_cases() {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> cases;
  for (const auto& [ranks, node_size] : {std::pair{2, 1}, {3, 1}, {5, 1}, {4, 2}, {4, 3}, {5, 2}, {8, 4}, {3, 3}}) {
    for (const int64_t numel : {1, 5000, 300'003}) cases.emplace_back(ranks, node_size, numel);
  }
  cases.emplace_back(4, 2, 0);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReduceScatterExchangeOf, ::testing::ValuesIn(shard_cases()));

TEST(ReduceScatterExchange, HasTheBitsOfTheWholeMeanInEveryFormatAndRounding) {
  for (const WireFormat format : kWireFormats) {
    if (!codec::wire::can_be_split(format)) continue;  // One step for a message, or blocks that begin with it.
    for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
      const ShardCase given{{.format = format, .exact = {{100, 40}, {3000, 1}}, .link = link}, 2, kAtRandom};
      const auto arrays = own_arrays_of(6, 20'001);
      const auto whole = shards_of_means(given, arrays, Result::kWhole);
      const auto own = shards_of_means(given, arrays, Result::kShardOfWhole);
      for (size_t rank = 0; rank < arrays.size(); ++rank) {
        EXPECT_TRUE(at::equal(own[rank].shard, whole[rank].shard)) << format << ", rank " << rank;
      }
    }
  }
}

// Values that are multiples of the codes' step are not rounded, so that every residual reaches the mean.
TEST(ReduceScatterExchange, TakesResidualsOfEarlierMeansOnce) {
  const std::vector<at::Tensor> arrays(3, at::zeros({6144}));
  const ShardCase given{{.format = WireFormat::kFp32}, 1, {}, true};
  const auto results = shards_of_means(given, arrays, Result::kShard);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const double expected = (1e-3 + 2e-3 + 3e-3) / 3 + 2e-3 * static_cast<double>(rank + 1);
    EXPECT_TRUE(at::allclose(results[rank].shard, at::full({2048}, expected))) << rank;
    EXPECT_TRUE(at::equal(results[rank].mean_residual, at::zeros({2048}))) << rank;
  }
}

TEST(ReduceScatterExchange, SendsHalfTheBytesOfTwoShots) {
  const auto arrays = own_arrays_of(4, 4 * 65'536);
  const ShardCase given{{.link = kTwoShotPays}, 1};
  const auto whole = shards_of_means(given, arrays, Result::kWhole);
  for (const Result result : {Result::kShard, Result::kShardOfWhole}) {
    EXPECT_EQ(2 * shards_of_means(given, arrays, result)[1].payload, whole[1].payload);
  }
}

}  // namespace
}  // namespace narrowcast::collectives
