#include "hooks/gathered_mean_job.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "ops/engine/engine.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// Sends one byte per piece: ten times the first element plus the number of the
// piece. Decodes to the byte of rank 0, of rank 1, ... as decimal digits, and notes what it was asked.
class OneByteCodec final : public BucketCodec {
 public:
  explicit OneByteCodec(std::vector<Piece>* encoded, int64_t multiple = 1) : encoded_(encoded), multiple_(multiple) {}

  int64_t piece_multiple() const override { return multiple_; }
  int64_t message_bytes(const Piece&) const override { return 1; }
  void begin(const at::Tensor& bucket) override { first_ = bucket[0].item<float>(); }
  void encode(const Piece& piece, const at::Tensor&, uint8_t* message) override {
    encoded_->push_back(piece);
    *message = static_cast<uint8_t>(10 * first_ + static_cast<float>(piece.index));
  }
  void decode_mean(const Piece& piece, const std::vector<const uint8_t*>& messages, const at::Tensor& bucket) override {
    float digits = 0;
    for (const uint8_t* const message : messages) digits = 100 * digits + static_cast<float>(*message);
    bucket.narrow(0, piece.begin, piece.numel).fill_(digits);
  }

 private:
  std::vector<Piece>* const encoded_;
  const int64_t multiple_;
  float first_ = 0;
};

TEST(GatheredMeanJob, EncodesInOrderAndDecodesTheRanksInOrder) {
  testing::run_ranks(3, [](int64_t rank, const Group& group) {
    const int64_t numel = (1 << 20) + 5;
    std::vector<Piece> encoded;
    const auto job = std::make_shared<GatheredMeanJob>(std::make_unique<OneByteCodec>(&encoded),
                                                       GatheredMeanJobOptions{"test", rank, 3, numel});
    EXPECT_EQ(job->payload_bytes(), 2 * 2) << "two pieces to two peers";
    const at::Tensor bucket = at::full({numel}, static_cast<float>(rank + 1));
    job->set_bucket(bucket);
    const auto engine = engine::Engine::for_group(group);
    const auto future = engine->submit(job);
    future->waitAndThrow();
    EXPECT_TRUE(future->value().toTensor().is_same(bucket));
    EXPECT_EQ(bucket[0].item<float>(), 102030.F);
    EXPECT_EQ(bucket[numel - 1].item<float>(), 112131.F);
    ASSERT_EQ(encoded.size(), 2);
    EXPECT_EQ(encoded[1].begin, 1 << 20);
    EXPECT_EQ(encoded[1].numel, 5);
  });
}

TEST(GatheredMeanJob, CutsBetweenWhatBelongsTogether) {
  const auto pieces = [](int64_t numel, int64_t multiple) {
    std::vector<Piece> encoded;
    // At one byte each, the payload for a single peer is the number of pieces.
    return GatheredMeanJob(std::make_unique<OneByteCodec>(&encoded, multiple),
                           GatheredMeanJobOptions{"test", 0, 2, numel})
        .payload_bytes();
  };
  const int64_t mebi = 1 << 20;
  EXPECT_EQ(pieces(mebi, 1), 1);
  EXPECT_EQ(pieces(mebi + 1, 1), 2);
  EXPECT_EQ(pieces(mebi + 1, 1000), 1) << "1049 thousands fit no smaller piece";
  EXPECT_EQ(pieces(1'049'001, 1000), 2);
  EXPECT_EQ(pieces(3 * mebi, mebi + 1), 3);
  EXPECT_EQ(pieces(3 * mebi, 3 * mebi), 1);
  EXPECT_EQ(pieces(3 * mebi, std::numeric_limits<int64_t>::max()), 1);
  EXPECT_EQ(pieces(0, 1000), 0);
}

TEST(GatheredMeanJob, NeedsNoMoreChannelsThanThereAre) {
  std::vector<Piece> encoded;
  // Pieces of this bucket must be larger than usual. At one byte each, the payload is their number.
  const GatheredMeanJob job(std::make_unique<OneByteCodec>(&encoded),
                            GatheredMeanJobOptions{"test", 0, 2, (int64_t{1} << 33) + 1});
  EXPECT_LE(job.payload_bytes(), engine::Transport::kChannels);
  EXPECT_GT(job.payload_bytes(), engine::Transport::kChannels / 2);
}

}  // namespace
}  // namespace narrowcast::hooks
