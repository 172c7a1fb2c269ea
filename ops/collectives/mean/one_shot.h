// The mean in one hop.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/wire/run.h"

namespace narrowcast::collectives {

// Before: rank r holds its own array, cut into the same pieces on every rank.
// start:  rank r posts a receive for every piece from every peer. Then it encodes
//         piece after piece and sends each to ranks r+1, r+2, ..., r-1.
// finish: piece after piece, rank r waits for the messages of all peers and
//         averages those of ranks 0, 1, ..., W-1. Its own part goes through its
//         own message like any other.
// After:  every rank has computed the same mean from the same bytes.
class OneShot final : public MeanExchange {
 public:
  OneShot(const MeanOptions& options, std::shared_ptr<MessageMemory> memory);

  int64_t payload_bytes() const override;
  void start(engine::Transport& transport, MeanCall call) override;
  void finish(engine::Transport& transport) override;

 private:
  int64_t channel(size_t piece) const { return options_.first_channel + static_cast<int64_t>(piece); }
  void post_receives(engine::Transport& transport);
  void encode_piece(size_t piece) const;
  void send_piece(engine::Transport& transport, size_t piece) const;
  size_t message(size_t piece, int64_t rank) const { return messages_[piece * options_.world_size + rank]; }

  const MeanOptions options_;
  const std::shared_ptr<MessageMemory> memory_;
  const std::vector<Segment> pieces_;
  MessageLayout layout_;
  std::vector<size_t> messages_;  // By piece, then by rank; this rank's own are what it sends.
  // Of the call in progress:
  MeanCall call_;
  std::vector<at::Tensor> placed_;
  std::vector<int64_t> receives_;  // By piece, then by distance of the peer.
};

}  // namespace narrowcast::collectives
