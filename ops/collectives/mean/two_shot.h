// The mean in two hops.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/wire/run.h"

namespace narrowcast::collectives {

// Before:  rank r holds its own array, cut into the same W shards on every rank,
//          and each shard into the same chunks.
// start:   rank r posts the receives of both hops. Then, chunk after chunk, it
//          encodes its part of the shards of ranks r+1, r+2, ..., r-1 and sends
//          each to its owner. Of its own shard nothing is encoded.
// advance: chunk after chunk, rank r waits for all parts of its own shard, sums
//          them with its own in the order of ranks 0, 1, ..., W-1 in float32,
//          divides by W, and sends the encoded mean to all others.
// finish:  chunk after chunk, rank r decodes the W means as they come: its own,
//          too, from the message that the others get.
// After:   every rank has decoded the same bytes.
class TwoShot final : public MeanExchange {
 public:
  TwoShot(const MeanOptions& options, std::shared_ptr<MessageMemory> memory);

  int64_t payload_bytes() const override;
  void start(engine::Transport& transport, MeanCall call) override;
  void advance(engine::Transport& transport) override;
  void finish(engine::Transport& transport) override;

 private:
  // Messages of one chunk, by rank: indices into layout_. What concerns this rank itself is unused.
  struct ChunkMessages {
    std::vector<size_t> parts_sent;      // This rank's part of rank r's shard.
    std::vector<size_t> parts_received;  // Rank r's part of this rank's shard.
    std::vector<size_t> means;           // Rank r's mean; this rank's own is what it sends.
  };
  int64_t peer_before(int64_t distance) const;
  int64_t peer_after(int64_t distance) const;
  int64_t channel(int64_t hop, size_t chunk) const;
  const Segment& segment(int64_t rank, size_t chunk) const { return chunks_[rank][chunk]; }
  ChunkMessages lay_out(size_t chunk);
  void post_receives(engine::Transport& transport);
  void encode_part(int64_t peer, size_t chunk) const;
  void send_part(engine::Transport& transport, int64_t peer, size_t chunk) const;
  void send_mean(engine::Transport& transport, size_t chunk);
  void take_means(engine::Transport& transport, size_t chunk);
  void decode_mean(int64_t rank, size_t chunk) const;

  const MeanOptions options_;
  const std::shared_ptr<MessageMemory> memory_;
  const std::vector<std::vector<Segment>> chunks_;  // By rank, whose shards they make up.
  MessageLayout layout_;
  std::vector<ChunkMessages> messages_;  // By chunk.
  // Of the call in progress:
  MeanCall call_;
  std::vector<at::Tensor> placed_;
  std::vector<int64_t> part_receives_;  // By chunk, then by distance of the peer.
  std::vector<int64_t> mean_receives_;
};

}  // namespace narrowcast::collectives
