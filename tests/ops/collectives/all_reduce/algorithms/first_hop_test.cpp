#include "ops/collectives/all_reduce/algorithms/first_hop.h"

#include <gtest/gtest.h>

#include <memory>

#include "ops/collectives/all_reduce/algorithms/reduce_scatter.h"
#include "ops/collectives/all_reduce/algorithms/two_shot.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"

namespace narrowcast::collectives {
namespace {

// A rank sends its parts of the other ranks' shards once. In two shots it also sends the mean of its shard to each.
TEST(FirstHop, SendsEachOtherRankItsShard) {
  for (const int64_t world_size : {2, 3, 8}) {
    for (const int64_t numel : {0, 1, 5000, 3'000'017}) {
      for (int64_t rank = 0; rank < world_size; ++rank) {
        AllReduceOptions options{
            .rank = rank, .world_size = world_size, .numel = numel, .format = WireFormat::kInt4B32};
        const auto bytes_of = [&](int64_t shard) {
          return encoded_size(shard_of(shard, world_size, numel).numel, options.format);
        };
        int64_t parts = 0;
        for (int64_t shard = 0; shard < world_size; ++shard) parts += shard == rank ? 0 : bytes_of(shard);
        const auto memory = std::make_shared<MessageMemory>();
        EXPECT_EQ(make_two_shot(options, memory)->payload_bytes(), parts + (world_size - 1) * bytes_of(rank));
        options.result = Result::kShard;
        EXPECT_EQ(make_reduce_scatter(Route::kOneShot, options, memory)->payload_bytes(), parts);
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::collectives
