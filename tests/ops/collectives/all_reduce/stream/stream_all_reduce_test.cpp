// The mean on a stream must have the bits of the engine's. On the CPU, where a group's collectives block.
#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "ops/collectives/all_reduce/stream/shard_messages.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/ops/collectives/all_reduce/stream/both_ways.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/recorded_group.h"

namespace narrowcast::collectives {
namespace {

using node::NodeLayout;
using ::testing::HasSubstr;
using testing::run_ranks;

constexpr int64_t kStreamSizes[] = {0, 1, 7, 127, 128, 129, 255, 256, 257, 5'000, 1'000'003};

class StreamAllReduceOfSizes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(StreamAllReduceOfSizes, HasTheBitsOfTheEngine) {
  const auto [world_size, numel] = GetParam();
  const auto arrays = make_stream_arrays(world_size, numel);
  for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
    run_ranks(world_size, [&, numel = numel](int64_t rank, const Group& group) {
      BothWays ways(group, {.numel = numel, .format = WireFormat::kInt8B128, .link = link}, false);
      ways.step(arrays[rank], {});
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Stream, StreamAllReduceOfSizes,
                         ::testing::Combine(::testing::ValuesIn(kWorlds), ::testing::ValuesIn(kStreamSizes)));

class StreamAllReduceOfFormats : public ::testing::TestWithParam<WireFormat> {};

TEST_P(StreamAllReduceOfFormats, HasTheBitsOfTheEngineInEveryStepOfEveryKind) {
  constexpr int64_t kNumel = 20'001;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto arrays = make_stream_arrays(3, kNumel, dtype);
    for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
      for (const bool error_feedback : {false, true}) {
        run_ranks(3, [&](int64_t rank, const Group& group) {
          BothWays ways(group, {.numel = kNumel, .format = GetParam(), .exact = {{5, 1000}, {9000, 1}}, .link = link},
                        error_feedback);
          for (const uint64_t step : {1, 2, 3}) {
            ways.step(arrays[rank], {.stochastic = step > 1, .seed = 42, .step = step, .position = 0});
          }
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stream, StreamAllReduceOfFormats, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(to_string(info.param)); });

// Number of ranks, ranks per node, elements.
class StreamAllReduceOverNodes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(StreamAllReduceOverNodes, HasTheBitsOfTheEngine) {
  const auto [world_size, node_size, numel] = GetParam();
  const auto arrays = make_stream_arrays(world_size, numel);
  run_ranks(world_size, [&, node_size = node_size, numel = numel](int64_t rank, const Group& group) {
    for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
      BothWays ways(group, {.numel = numel, .format = WireFormat::kInt8B128, .link = link}, false, node_size);
      ways.step(arrays[rank], {});
      EXPECT_EQ(ways.stream->payload_bytes() == 0, ways.job->payload_bytes() == 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stream, StreamAllReduceOverNodes,
                         ::testing::Combine(::testing::ValuesIn(kWorlds), ::testing::Values(2, 3, 8),
                                            ::testing::Values(0, 1, 129, 5'000, 1'000'003)));

TEST_P(StreamAllReduceOfFormats, HasTheBitsOfTheEngineOverNodesInEveryStepOfEveryKind) {
  constexpr int64_t kNumel = 20'001;
  // Two segments; one segment on nodes of 2 + 2 + 1 ranks.
  for (const auto& [world_size, dtype] : {std::pair(4, at::kFloat), std::pair(5, at::kBFloat16)}) {
    const auto arrays = make_stream_arrays(world_size, kNumel, dtype);
    run_ranks(world_size, [&](int64_t rank, const Group& group) {
      for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
        for (const bool error_feedback : {false, true}) {
          BothWays ways(group, {.numel = kNumel, .format = GetParam(), .exact = {{5, 1000}, {9000, 1}}, .link = link},
                        error_feedback, 2);
          for (const uint64_t step : {1, 2, 3}) {
            ways.carried = step == 2 ? arrays[rank].to(at::kFloat).mul(0.01) : at::Tensor();
            ways.step(arrays[rank], {.stochastic = step > 1, .seed = 42, .step = step, .position = 7});
          }
        }
      }
    });
  }
}

TEST(StreamAllReduce, TakesNodesOfAnyRanks) {
  const auto arrays = make_stream_arrays(5, 9'000, at::kDouble);
  const NodeLayout layout({0, 1, 0, 1, 0});
  for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
    run_ranks(5, [&](int64_t rank, const Group& group) {
      StreamAllReduce mean({group, split_over_gloo(group, layout)},
                           {.name = "m", .rank = rank, .numel = 9'000, .format = WireFormat::kInt4B32, .link = link},
                           at::kCPU);
      const at::Tensor array = arrays[rank].clone();
      mean.enqueue({array, {}, {}});
      EXPECT_TRUE(at::equal(array, mean_over_nodes({WireFormat::kInt4B32}, arrays, layout, link)));
    });
  }
}

TEST(StreamAllReduce, ANonFiniteElementReachesAllRanksOfAllNodes) {
  auto arrays = make_stream_arrays(4, 9'000);
  arrays[3][0] = std::numeric_limits<float>::quiet_NaN();
  arrays[1][8999] = std::numeric_limits<float>::infinity();
  run_ranks(4, [&](int64_t rank, const Group& group) {
    StreamAllReduce mean({group, split_over_gloo(group, NodeLayout::of_size(4, 2))},
                         {.name = "m", .rank = rank, .numel = 9'000, .format = WireFormat::kInt4B32}, at::kCPU);
    mean.enqueue({arrays[rank], {}, {}});
    EXPECT_FALSE(std::isfinite(arrays[rank][0].item<float>()));
    EXPECT_TRUE(std::isfinite(arrays[rank][4500].item<float>()));
    EXPECT_FALSE(std::isfinite(arrays[rank][8999].item<float>()));
  });
}

// NCCL copies byte by byte if a buffer is unaligned. An asynchronous collective would use NCCL's internal stream, which
// waits for the current one and makes it wait.
void expect_for_gpus(const testing::CollectiveRecord& record) {
  constexpr int64_t kSlot = 128;
  for (const testing::RecordedCollective& collective : record) {
    EXPECT_FALSE(collective.async_op);
    for (const int64_t byte : collective.parts_sent) EXPECT_EQ(byte % kSlot, 0);
    for (const int64_t byte : collective.parts_received) EXPECT_EQ(byte % kSlot, 0);
    for (const at::Tensor& buffer : {collective.sent, collective.received}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.const_data_ptr()) % 64, 0) << "as the CPU's allocator has them";
    }
  }
}

TEST_P(StreamAllReduceOfFormats, SendsMessagesAsGpusSendThemFast) {
  constexpr int64_t kNumel = 20'001;
  for (const auto& [world_size, node_size] : {std::pair(2, 1), std::pair(3, 1), std::pair(5, 2)}) {
    run_ranks(world_size, [&, world_size = world_size, node_size = node_size](int64_t rank, const Group& group) {
      for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
        const auto record = std::make_shared<testing::CollectiveRecord>();
        const auto layout = NodeLayout::of_size(world_size, node_size);
        StreamAllReduce mean(
            {testing::recorded(group, record), split_over_gloo(group, layout, record)},
            {.name = "m", .rank = rank, .numel = kNumel, .format = GetParam(), .exact = {{5, 33}}, .link = link},
            at::kCPU);
        mean.enqueue({at::ones({kNumel}), {}, {}});
        EXPECT_GE(record->size(), 1);
        expect_for_gpus(*record);
      }
    });
  }
}

// Two arrays of each size take turns: content that one leaves in the memory must not affect the other.
TEST_P(StreamAllReduceOfFormats, SharesTheMemoryOfTheLargestArray) {
  constexpr int64_t kSizes[] = {5'000, 40'000, 40'000, 300};
  for (const auto& [world_size, node_size] : {std::pair(3, 1), std::pair(4, 2)}) {
    const auto layout = NodeLayout::of_size(world_size, node_size);
    run_ranks(world_size, [&, world_size = world_size, node_size = node_size](int64_t rank, const Group& group) {
      for (const LinkCost& link : {kOneShotPays, kTwoShotPays}) {
        const StreamRanks ranks{group, split_over_gloo(group, layout)};
        const auto memory = std::make_shared<StreamWorkspace>();
        const auto mean_of = [&](int64_t numel, const std::shared_ptr<StreamWorkspace>& workspace) {
          const AllReduceJobOptions options{
              .name = "m", .rank = rank, .numel = numel, .format = GetParam(), .exact = {{7, 200}}, .link = link};
          return std::make_unique<StreamAllReduce>(ranks, options, at::kCPU, workspace);
        };
        std::vector<std::unique_ptr<StreamAllReduce>> means;
        for (const int64_t numel : kSizes) means.push_back(mean_of(numel, memory));
        for (int step = 0; step < 2; ++step) {
          for (size_t i = 0; i < means.size(); ++i) {
            const at::Tensor array = at::full({kSizes[i]}, rank + 0.37).mul(at::arange(kSizes[i]));
            const at::Tensor expected = array.clone();
            mean_of(kSizes[i], nullptr)->enqueue({expected, {}, {}});
            means[i]->enqueue({array, {}, {}});
            EXPECT_TRUE(at::equal(array, expected));
          }
        }
        const auto alone = std::make_shared<StreamWorkspace>();
        mean_of(40'000, alone)->enqueue({at::ones({40'000}), {}, {}});
        EXPECT_EQ(memory->bytes(), alone->bytes());
        if (node_size == 1 && !(link == kOneShotPays) && !codec::wire::is_sparse(GetParam())) {  // Two shots.
          const int64_t message = encoded_size(40'000, GetParam());
          const int64_t exact = world_size * slot_bytes(200 * 4);  // Fewer than a grain: all are in one rank's shard.
          EXPECT_LE(memory->bytes(), 2 * (message * 11 / 10 + exact)) << "shards are of whole grains, slots of lines";
        }
      }
    });
  }
}

TEST(StreamAllReduce, CountsWhatItSends) {
  constexpr int64_t kNumel = 6'144;  // Six grains: two for each of three ranks.
  run_ranks(3, [](int64_t, const Group& group) {
    const StreamAllReduce one(
        {group}, {.name = "m", .numel = kNumel, .format = WireFormat::kInt8B128, .link = kOneShotPays}, at::kCPU);
    EXPECT_EQ(one.payload_bytes(), 2 * encoded_size(kNumel, WireFormat::kInt8B128));
    const StreamAllReduce two(
        {group}, {.name = "m", .numel = kNumel, .format = WireFormat::kInt8B128, .link = kTwoShotPays}, at::kCPU);
    EXPECT_EQ(two.payload_bytes(), 4 * encoded_size(kNumel / 3, WireFormat::kInt8B128));
  });
}

TEST(StreamAllReduce, AFailedCollectiveNamesRankAndExchange) {
  const auto fails_with = [](const AllReduceJobOptions& options, const char* text) {
    const auto body = [&](int64_t rank, const Group& group) {
      StreamAllReduce mean({group}, options, at::kCPU);
      if (rank == 1) {
        return;  // This destroys its group.
      }
      const std::string message = testing::error_message<c10::DistBackendError>([&] {
        mean.enqueue({at::ones({100}), {}, {}});
      });
      EXPECT_THAT(message, HasSubstr(text));
    };
    run_ranks(2, body, {.timeout = std::chrono::milliseconds(2000)});
  };
  fails_with({.name = "int8 of bucket 3", .numel = 100, .link = kOneShotPays},
             "rank 0: all-gather of messages of int8 of bucket 3 failed: ");
  fails_with({.name = "h of bucket 3", .numel = 100, .all_gather = "all-gather of hook h", .link = kOneShotPays},
             "rank 0: all-gather of hook h failed: ");
}

}  // namespace
}  // namespace narrowcast::collectives
