// Chunks of a mean on a stream do not change the bits (in formats whose messages can be split), the order of
// collectives, or the memory. On the CPU; chunk_streams_test.cpp tests the overlap of streams.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/ops/collectives/all_reduce/stream/both_ways.h"
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/ranks.h"
#include "tests/support/recorded_group.h"
#include "tests/support/sanitized.h"

namespace narrowcast::collectives {
namespace {

using node::NodeLayout;
using testing::run_ranks;

constexpr int64_t kSmallChunk = 1'024;  // In bytes, so that arrays of a few grains are sent in chunks.
const std::vector<ElementRange> kExact{{5, 900}, {1'020, 9}, {1'900, 1}};

class StreamChunks : public ::testing::TestWithParam<WireFormat> {};

// Sizes around the borders of grains, shards and chunks. The borders do not depend on the format: each has two worlds,
// and all have all.
TEST_P(StreamChunks, HaveTheBitsOfTheEngine) {
  const int64_t sizes[] = {2'047, 2'048, 2'049, 6'145, 16'383, 16'385, 40'961, 65'536};
  const auto turn = static_cast<size_t>(std::ranges::find(kWireFormats, GetParam()) - std::ranges::begin(kWireFormats));
  std::vector<int64_t> worlds{kWorlds[turn % std::size(kWorlds)], kWorlds[(turn + 2) % std::size(kWorlds)]};
  if (test::kSanitized) worlds = {3};
  for (const int64_t world_size : worlds) {
    run_ranks(world_size, [&](int64_t rank, const Group& group) {
      for (const int64_t numel : sizes) {
        const auto arrays = make_stream_arrays(world_size, numel);
        for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
          BothWays ways(group, {.numel = numel, .format = GetParam(), .link = link, .least_chunk_bytes = kSmallChunk},
                        false);
          ways.step(arrays[rank], {});
        }
      }
    });
  }
}

TEST_P(StreamChunks, HaveTheBitsOfTheEngineInEveryStepOfEveryKind) {
  constexpr int64_t kNumel = 40'001;
  // In one level, and on nodes of 2 + 2 and 2 + 2 + 1 ranks.
  for (const auto& [world_size, node_size, dtype] :
       {std::tuple(3, 1, at::kFloat), std::tuple(4, 2, at::kFloat), std::tuple(5, 2, at::kBFloat16)}) {
    const auto arrays = make_stream_arrays(world_size, kNumel, dtype);
    run_ranks(world_size, [&, node_size = node_size](int64_t rank, const Group& group) {
      for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
        for (const bool error_feedback : {false, true}) {
          BothWays ways(
              group,
              {.numel = kNumel, .format = GetParam(), .exact = kExact, .link = link, .least_chunk_bytes = kSmallChunk},
              error_feedback, node_size);
          for (const uint64_t step : {1, 2, 3}) {
            ways.step(arrays[rank], {.stochastic = step > 1, .seed = 42, .step = step, .position = 7});
          }
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Stream, StreamChunks, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(to_string(info.param)); });

// In variable formats each chunk has its own step. The engine sends this number of elements in two messages per shard,
// or in three per array.
TEST(StreamChunksOfVariableWidth, AreTheEngines) {
  constexpr int64_t kNumel = 2'600'003;
  const auto arrays = make_stream_arrays(3, kNumel);
  for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
    run_ranks(3, [&](int64_t rank, const Group& group) {
      BothWays ways(group, {.numel = kNumel, .format = WireFormat::kVar5, .exact = kExact, .link = link}, true);
      ways.step(arrays[rank], {.stochastic = true, .seed = 42, .step = 1, .position = 0});
    });
  }
}

TEST(StreamChunksOfVariableWidth, AreTheEnginesBetweenNodes) {
  constexpr int64_t kNumel = 3'600'003;  // Two ranges, each sent in two messages.
  const auto arrays = make_stream_arrays(4, kNumel);
  run_ranks(4, [&](int64_t rank, const Group& group) {
    BothWays ways(group, {.numel = kNumel, .format = WireFormat::kVar5, .exact = kExact}, true, 2);
    ways.step(arrays[rank], {.stochastic = true, .seed = 42, .step = 1, .position = 0});
  });
}

struct Exchanged {
  testing::CollectiveRecord collectives;
  int64_t payload_bytes = 0;
  int64_t workspace_bytes = 0;
};

// The calls of each rank for one array.
std::vector<Exchanged> exchange(const NodeLayout& layout, const AllReduceJobOptions& options) {
  std::vector<Exchanged> ranks(static_cast<size_t>(layout.world_size()));
  run_ranks(layout.world_size(), [&](int64_t rank, const Group& group) {
    const auto record = std::make_shared<testing::CollectiveRecord>();
    const auto memory = std::make_shared<StreamWorkspace>();
    AllReduceJobOptions own = options;
    own.rank = rank;
    StreamAllReduce mean({testing::recorded(group, record), split_over_gloo(group, layout, record)}, own, at::kCPU,
                         memory);
    mean.enqueue({at::ones({options.numel}), {}, {}});
    ranks[static_cast<size_t>(rank)] = {*record, mean.payload_bytes(), memory->bytes()};
  });
  return ranks;
}

AllReduceJobOptions chunked(const LinkCost& link) {
  return {.name = "m",
          .numel = 1'000'003,
          .format = WireFormat::kInt8B128,
          .link = link,
          .least_chunk_bytes = int64_t{128} << 10};
}

TEST(StreamChunksOfAnArray, CallTheSameCollectivesOnAllRanksInTheMemoryOfOne) {
  const NodeLayout layout = NodeLayout::of_size(4, 1);
  for (const auto& [link, hops] : {std::pair(kOneShotPays, 1), std::pair(kTwoShotPays, 2)}) {
    const auto ranks = exchange(layout, chunked(link));
    AllReduceJobOptions at_once = chunked(link);
    at_once.least_chunk_bytes = kLeastChunkBytes;
    const auto whole = exchange(layout, at_once);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      ASSERT_EQ(ranks[rank].collectives.size(), 7 * hops);
      ASSERT_EQ(whole[rank].collectives.size(), hops);
      for (size_t i = 0; i < ranks[rank].collectives.size(); ++i) {
        const auto& own = ranks[rank].collectives[i];
        EXPECT_EQ(own.received.numel(), ranks[0].collectives[i].received.numel()) << "collective " << i;
        EXPECT_GE(own.received.numel(), 100 << 10) << "the messages of an array, or of three shards";
      }
      EXPECT_EQ(ranks[rank].payload_bytes, whole[rank].payload_bytes);
      // Chunks may differ by a grain.
      const int64_t slots = 7 * (layout.world_size() + 1);
      EXPECT_LE(ranks[rank].workspace_bytes, whole[rank].workspace_bytes + slots * 2 * (1024 + 256));
    }
  }
}

TEST(ExactElementsOnAStream, AddNoCollective) {
  for (const int64_t node_size : {1, 2}) {
    const NodeLayout layout = NodeLayout::of_size(4, node_size);
    for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
      AllReduceJobOptions options{.name = "m", .numel = 20'001, .format = WireFormat::kInt4B32, .link = link};
      const auto without = exchange(layout, options);
      options.exact = {{5, 900}, {9'000, 1'000}, {15'000, 700}};
      const auto with = exchange(layout, options);
      int64_t sent = 0;
      for (size_t rank = 0; rank < with.size(); ++rank) {
        EXPECT_EQ(with[rank].collectives.size(), without[rank].collectives.size());
        sent += with[rank].payload_bytes - without[rank].payload_bytes;
      }
      const int64_t places = layout.has_levels() ? layout.nodes() : layout.world_size();
      const bool two_shots = places > 2 && link == kTwoShotPays;
      EXPECT_EQ(sent, 2'600 * 4 * (places - 1) * (two_shots ? 2 : places));
    }
  }
}

}  // namespace
}  // namespace narrowcast::collectives
