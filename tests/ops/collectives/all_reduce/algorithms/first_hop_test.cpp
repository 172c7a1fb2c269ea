#include "ops/collectives/all_reduce/algorithms/first_hop.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/collectives/all_reduce/algorithms/reduce_scatter.h"
#include "ops/collectives/all_reduce/algorithms/two_shot.h"
#include "ops/comm/engine/engine.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/support/ranks.h"

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

constexpr int64_t kRanks = 3;
constexpr int64_t kMessage = int64_t{16} << 10;  // Bytes of a float32 shard.
constexpr int64_t kShard = kMessage / 4;

// The bytes of an exchange's memory that it has written.
int64_t written_bytes(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const at::Tensor& array, Result result) {
  constexpr uint8_t kUnwritten = 7;
  const JobMemory memory;
  const MessageMemory::Buffer first = memory.narrow->take(8 * kMessage);
  memory.narrow->take(8 * kMessage);  // The exchange takes the first one again.
  first.bytes.fill_(kUnwritten);
  const auto job = std::make_shared<AllReduceJob>(AllReduceJobOptions{.name = "a mean",
                                                                      .rank = group->getRank(),
                                                                      .world_size = kRanks,
                                                                      .numel = array.numel(),
                                                                      .link = kTwoShotPays,
                                                                      .result = result},
                                                  memory);
  job->set_call({array, {}, {}});
  engine::Engine::for_group(group)->submit(job)->waitAndThrow();
  return first.bytes.ne(kUnwritten).sum().item<int64_t>();
}

// A rank receives two parts of its shard. With two shots, there are also the messages of three means.
TEST(FirstHop, SendsTheElementsOfAFloat32ArrayFromTheirOwnMemory) {
  testing::run_ranks(kRanks, [](int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    for (const Result result : {Result::kWhole, Result::kShard, Result::kShardOfWhole}) {
      const at::Tensor array = at::full({kRanks * kShard}, static_cast<float>(rank));
      const int64_t written = written_bytes(group, array, result);
      EXPECT_GT(written, 0);
      EXPECT_LE(written, (result == Result::kWhole ? 5 : 2) * kMessage);
      const at::Tensor own = array.narrow(0, rank * kShard, kShard);
      EXPECT_LT((own - 1).abs().max().item<float>(), 1e-6);
    }
    const at::Tensor narrow = at::full({kRanks * kShard}, static_cast<float>(rank + 1)).to(at::kBFloat16);
    EXPECT_GT(written_bytes(group, narrow, Result::kShard), 2 * kMessage) << "its elements are converted";
  });
}

}  // namespace
}  // namespace narrowcast::collectives
