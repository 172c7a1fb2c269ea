#include "ops/collectives/all_reduce/stream/shard_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "ops/collectives/all_reduce/array/element_range.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"

namespace narrowcast::collectives {
namespace {

TEST(ChunkCount, IsOfLargeArraysAndBounded) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(chunk_count(0, 0, kLeastChunkBytes), 1);
  EXPECT_EQ(chunk_count(8 * kMiB - 1, 1'000'000, kLeastChunkBytes), 1);
  EXPECT_EQ(chunk_count(8 * kMiB, 1'000'000, kLeastChunkBytes), 2);
  EXPECT_EQ(chunk_count(1024 * kMiB, 1'000'000, kLeastChunkBytes), 8);
  EXPECT_EQ(chunk_count(1024 * kMiB, 3, 1), 3) << "no chunk is empty";
}

class ShardMessagesOf : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

// Chunks do not change the owner of an element, everything is sent once, and slots begin at cache lines.
TEST_P(ShardMessagesOf, CutShardsIntoChunks) {
  const auto [world_size, numel] = GetParam();
  for (const WireFormat format : {WireFormat::kInt4B32, WireFormat::kFp32}) {
    const ShardMessages whole({format, numel, 500}, world_size);
    const ShardMessages chunked({format, numel, 500, 2'000}, world_size);
    EXPECT_EQ(whole.chunks(), 1);
    EXPECT_EQ(chunked.chunks(), chunk_count(encoded_size(numel, format), numel / 1024 / world_size, 2'000));
    EXPECT_LE(chunked.bytes(), whole.bytes() + chunked.chunks() * world_size * (encoded_size(1024, format) + 256));
    EXPECT_EQ(chunked.begin(0), 0);
    for (int64_t rank = 0; rank < world_size; ++rank) {
      int64_t next = shard_of(rank, world_size, numel).begin;
      for (int64_t chunk = 0; chunk < chunked.chunks(); ++chunk) {
        const ElementRange range = chunked.range(rank, chunk);
        EXPECT_EQ(range.begin, next);
        next += range.numel;
        EXPECT_LE(encoded_size(range.numel, format), chunked.slot_bytes(chunk));
        EXPECT_EQ(chunked.slot_bytes(chunk) % kSlotBytes, 0);
        EXPECT_EQ(chunked.begin(chunk + 1), chunked.begin(chunk) + world_size * chunked.slot_bytes(chunk));
      }
      EXPECT_EQ(next, shard_of(rank, world_size, numel).begin + shard_of(rank, world_size, numel).numel);
      EXPECT_EQ(chunked.message_bytes(rank), whole.message_bytes(rank));
      const int64_t exact_end =
          chunked.exact_begin() + encoded_size(chunked.exact_shard(rank).numel, WireFormat::kFp32);
      EXPECT_LE(exact_end, chunked.slot_bytes(0));
    }
    EXPECT_EQ(chunked.exact_begin() % kSlotBytes, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Stream, ShardMessagesOf,
                         ::testing::Combine(::testing::ValuesIn(kWorlds),
                                            ::testing::Values(0, 1, 1023, 1025, 9'000, 40'960, 1'000'003)));

}  // namespace
}  // namespace narrowcast::collectives
