#include "ops/collectives/mean/one_shot.h"

#include <algorithm>
#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/collectives/wire/run_codec.h"

namespace narrowcast::collectives {
namespace {

// Elements of a piece: while one is encoded or decoded, the others are on their way. Smaller ones cost more per message
// than they hide.
constexpr int64_t kPieceNumel = int64_t{1} << 20;

int64_t count_pieces(int64_t numel) {
  return std::clamp<int64_t>((numel + kPieceNumel / 2) / kPieceNumel, 1, kChannelsPerArray);
}

}  // namespace

OneShot::OneShot(const MeanOptions& options, std::shared_ptr<MessageMemory> memory)
    : options_(options), memory_(std::move(memory)), pieces_(cut(options.numel, count_pieces(options.numel))) {
  for (const Segment& piece : pieces_) {
    for (int64_t rank = 0; rank < options_.world_size; ++rank) {
      messages_.push_back(layout_.add(encoded_size(piece.numel, options_.format)));
    }
  }
}

int64_t OneShot::payload_bytes() const {
  return encoded_size(options_.numel, options_.format) * (options_.world_size - 1);
}

void OneShot::start(engine::Transport& transport, MeanCall call) {
  call_ = std::move(call);
  placed_ = layout_.place_in(memory_->take(layout_.total_bytes()));
  post_receives(transport);
  for (size_t piece = 0; piece < pieces_.size(); ++piece) {
    encode_piece(piece);
    send_piece(transport, piece);
  }
}

void OneShot::post_receives(engine::Transport& transport) {
  receives_.clear();
  for (size_t piece = 0; piece < pieces_.size(); ++piece) {
    for (int64_t distance = 1; distance < options_.world_size; ++distance) {
      const int64_t peer = (options_.rank + options_.world_size - distance) % options_.world_size;
      receives_.push_back(transport.post_receive({placed_[message(piece, peer)], peer, channel(piece)}));
    }
  }
}

void OneShot::encode_piece(size_t piece) const {
  const codec::wire::Rounding rounding = rounding_of(call_.rounding, options_.rank, 0);
  const int64_t begin = pieces_[piece].begin;
  float* const residual = call_.residuals.own == nullptr ? nullptr : call_.residuals.own + begin;
  encode_segment({options_.format, rounding.at(begin)}, {call_.array, pieces_[piece], residual},
                 placed_[message(piece, options_.rank)].mutable_data_ptr<uint8_t>());
}

void OneShot::send_piece(engine::Transport& transport, size_t piece) const {
  const at::Tensor& own = placed_[message(piece, options_.rank)];
  for (int64_t distance = 1; distance < options_.world_size; ++distance) {
    transport.send({own, (options_.rank + distance) % options_.world_size, channel(piece)});
  }
}

void OneShot::finish(engine::Transport& transport) {
  const auto peers = static_cast<size_t>(options_.world_size - 1);
  RankMessages by_rank(options_.world_size);
  for (size_t piece = 0; piece < pieces_.size(); ++piece) {
    for (size_t i = 0; i < peers; ++i) {
      transport.wait_receive(receives_[piece * peers + i]);
    }
    for (int64_t rank = 0; rank < options_.world_size; ++rank) {
      by_rank[rank] = placed_[message(piece, rank)].const_data_ptr<uint8_t>();
    }
    average_segments(options_.format, by_rank, {call_.array, pieces_[piece]});
  }
  call_ = {};
}

}  // namespace narrowcast::collectives
