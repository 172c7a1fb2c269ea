#include "hooks/gathered_mean_job.h"

#include <algorithm>
#include <utility>

#include "ops/engine/message_buffer.h"

namespace narrowcast::hooks {
namespace {

// Measured: 2^18 to 2^23 take the same time on the loopback interface, smaller pieces more. On a slower network the
// first piece's encoding and the last one's decoding overlap with nothing, so that a few pieces per bucket are best.
constexpr int64_t kPieceNumel = 1 << 20;
// Messages lie that far apart in their buffer, so that each is aligned.
constexpr int64_t kAlignment = 64;

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// As many elements as `multiple` stay together.
std::vector<Piece> cut_into_pieces(int64_t numel, int64_t multiple) {
  std::vector<Piece> pieces;
  if (numel == 0) return pieces;
  const int64_t fewest = round_up(numel, engine::Transport::kChannels) / engine::Transport::kChannels;
  const int64_t size = round_up(std::max(kPieceNumel, fewest), std::min(multiple, numel));
  for (int64_t begin = 0; begin < numel; begin += size) {
    pieces.push_back({static_cast<int64_t>(pieces.size()), begin, std::min(size, numel - begin)});
  }
  return pieces;
}

// One buffer with room for the messages of all pieces, as a view for each.
std::vector<at::Tensor> allocate_messages(const BucketCodec& codec, const std::vector<Piece>& pieces) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += round_up(codec.message_bytes(piece), kAlignment);
  const at::Tensor buffer = engine::allocate_message_buffer(total);
  std::vector<at::Tensor> messages;
  int64_t begin = 0;
  for (const Piece& piece : pieces) {
    const int64_t bytes = codec.message_bytes(piece);
    messages.push_back(buffer.narrow(0, begin, bytes));
    begin += round_up(bytes, kAlignment);
  }
  return messages;
}

}  // namespace

GatheredMeanJob::GatheredMeanJob(std::unique_ptr<BucketCodec> codec, GatheredMeanJobOptions options)
    : codec_(std::move(codec)),
      options_(std::move(options)),
      pieces_(cut_into_pieces(options_.numel, codec_->piece_multiple())) {
  for (int64_t rank = 0; rank < options_.world_size; ++rank) {
    messages_.push_back(allocate_messages(*codec_, pieces_));
  }
  receives_.reserve(pieces_.size() * peers());
}

int64_t GatheredMeanJob::payload_bytes() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += codec_->message_bytes(piece);
  return bytes * peers();
}

void GatheredMeanJob::start(engine::Transport& transport) {
  const int64_t rank = options_.rank;
  const int64_t world_size = options_.world_size;
  receives_.clear();
  for (const Piece& piece : pieces_) {
    for (int64_t distance = 1; distance < world_size; ++distance) {
      const int64_t peer = (rank + world_size - distance) % world_size;
      receives_.push_back(transport.post_receive({message(peer, piece), peer, piece.index}));
    }
  }
  codec_->begin(bucket_);
  for (const Piece& piece : pieces_) {
    const at::Tensor& own = message(rank, piece);
    codec_->encode(piece, bucket_, own.mutable_data_ptr<uint8_t>());
    for (int64_t distance = 1; distance < world_size; ++distance) {
      transport.send({own, (rank + distance) % world_size, piece.index});
    }
  }
}

at::Tensor GatheredMeanJob::finish(engine::Transport& transport) {
  std::vector<const uint8_t*> by_rank(options_.world_size);
  for (const Piece& piece : pieces_) {
    for (int64_t i = 0; i < peers(); ++i) transport.wait_receive(receives_[piece.index * peers() + i]);
    for (int64_t rank = 0; rank < options_.world_size; ++rank) {
      by_rank[rank] = message(rank, piece).const_data_ptr<uint8_t>();
    }
    codec_->decode_mean(piece, by_rank, bucket_);
  }
  return std::exchange(bucket_, {});
}

}  // namespace narrowcast::hooks
