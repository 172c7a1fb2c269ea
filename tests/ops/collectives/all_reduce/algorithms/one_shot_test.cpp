// One shot with a custom codec; exchange_test.cpp tests it in wire formats.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/algorithms/one_shot.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/comm/engine/engine.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// Sends one byte per chunk: ten times the array's first element plus the number of the chunk. Decodes to the bytes of
// rank 0, rank 1, ... as decimal digits, and records the calls.
class OneByteCodec final : public AllReduceCodec {
 public:
  explicit OneByteCodec(std::vector<ElementRange>* encoded, int64_t grain = 1) : encoded_(encoded), grain_(grain) {}

  int64_t grain() const override { return grain_; }
  int64_t message_bytes(const ElementRange& chunk) const override { return chunk.numel == 0 ? 0 : 1; }
  void encode(const AllReduceCall& call, const ElementRange& chunk, const at::Tensor& message) override {
    if (chunk.begin == 0) first_ = call.array[0].item<float>();
    *message.mutable_data_ptr<uint8_t>() = static_cast<uint8_t>(10 * first_ + static_cast<float>(encoded_->size()));
    encoded_->push_back(chunk);
  }
  void average(const AllReduceCall& call, const ElementRange& chunk, const std::vector<at::Tensor>& messages) override {
    float digits = 0;
    for (const at::Tensor& message : messages) digits = 100 * digits + message[0].item<float>();
    call.array.narrow(0, chunk.begin, chunk.numel).fill_(digits);
  }

 private:
  std::vector<ElementRange>* const encoded_;
  const int64_t grain_;
  float first_ = 0;
};

AllReduceCodecFactory one_byte_codec(std::vector<ElementRange>* encoded) {
  return [=](at::Device) { return std::make_unique<OneByteCodec>(encoded); };
}

at::Tensor average_once(const Group& group, const std::shared_ptr<AllReduceJob>& job, const at::Tensor& array) {
  job->set_call({array, {}, {}});
  const auto engine = engine::Engine::for_group(group);
  const auto future = engine->submit(job);
  future->waitAndThrow();
  return future->value().toTensor();
}

TEST(OneShot, EncodesInOrderAndDecodesTheRanksInOrder) {
  testing::run_ranks(3, [](int64_t rank, const Group& group) {
    const int64_t numel = 2 * (1 << 20) + 6;
    std::vector<ElementRange> encoded;
    const AllReduceJobOptions options{
        .name = "test", .rank = rank, .world_size = 3, .numel = numel, .codec = one_byte_codec(&encoded)};
    const auto job = std::make_shared<AllReduceJob>(options, JobMemory{});
    EXPECT_EQ(job->payload_bytes(), 2 * 2) << "two chunks to two peers";
    const at::Tensor array = at::full({numel}, static_cast<float>(rank + 1));
    EXPECT_TRUE(average_once(group, job, array).is_same(array));
    EXPECT_EQ(array[0].item<float>(), 102030.F);
    EXPECT_EQ(array[numel - 1].item<float>(), 112131.F);
    EXPECT_EQ(encoded, (std::vector<ElementRange>{{0, (1 << 20) + 3}, {(1 << 20) + 3, (1 << 20) + 3}}));
  });
}

TEST(OneShot, GoesThroughItsCodecWhereARankIsAlone) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    std::vector<ElementRange> encoded;
    const AllReduceJobOptions options{.name = "test", .numel = 5, .codec = one_byte_codec(&encoded)};
    const auto job = std::make_shared<AllReduceJob>(options, JobMemory{});
    EXPECT_EQ(job->payload_bytes(), 0);
    EXPECT_TRUE(average_once(group, job, at::full({5}, 2.F)).eq(20).all().item<bool>());
  });
}

// Each chunk has one byte, so the payload for a single peer is the number of chunks.
int64_t chunks_of(int64_t numel, int64_t grain) {
  std::vector<ElementRange> encoded;
  return make_one_shot({.rank = 0, .world_size = 2, .numel = numel}, std::make_unique<OneByteCodec>(&encoded, grain),
                       std::make_shared<MessageMemory>())
      ->payload_bytes();
}

TEST(OneShot, CutsBetweenWhatBelongsTogether) {
  const int64_t mebi = 1 << 20;
  EXPECT_EQ(chunks_of(mebi, 1), 1);
  EXPECT_EQ(chunks_of(3 * mebi / 2 - 1, 1), 1);
  EXPECT_EQ(chunks_of(3 * mebi / 2, 1), 2);
  EXPECT_EQ(chunks_of(3 * mebi / 2, 1000), 2);
  EXPECT_EQ(chunks_of(3 * mebi, mebi + 1), 3);
  EXPECT_EQ(chunks_of(3 * mebi, 2 * mebi), 2) << "no chunk is empty";
  EXPECT_EQ(chunks_of(3 * mebi, 3 * mebi), 1);
  EXPECT_EQ(chunks_of(3 * mebi, std::numeric_limits<int64_t>::max()), 1);
  EXPECT_EQ(chunks_of(0, 1000), 0);
}

TEST(OneShot, NeedsNoMoreChannelsThanThereAre) {
  EXPECT_EQ(chunks_of((int64_t{1} << 33) + 1, 1), kChannelsPerArray) << "chunks of this array are larger than usual";
}

}  // namespace
}  // namespace narrowcast::collectives
