// The first hop of two shots: the messages in which every rank sends its parts of the shards to their owners.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"

namespace narrowcast::collectives {

// An exchange that begins with that hop. A derived class adds its own messages to `offsets_`, and places them with the
// others.
class FirstHop : public AllReduceExchange {
 public:
  FirstHop(const AllReduceOptions& options, std::shared_ptr<MessageMemory> memory);

  int64_t payload_bytes() const override;
  void post_receives(engine::Transport& transport) override;
  void start(engine::Transport& transport, AllReduceCall call) override;

 protected:
  const AllReduceOptions& options() const { return options_; }
  const WireCodec& codec() const { return *codec_; }
  const AllReduceCall& call() const { return call_; }
  void end_call() { call_ = {}; }

  size_t chunks() const { return chunks_[0].size(); }
  // A chunk of a rank's shard, and the size of its message.
  const ElementRange& range(int64_t rank, size_t chunk) const { return chunks_[rank][chunk]; }
  int64_t message_bytes(int64_t rank, size_t chunk) const;
  // Bytes of all messages of that rank's shard.
  int64_t shard_bytes(int64_t rank) const;
  int64_t channel(int64_t hop, size_t chunk) const;
  SentRange sent(int64_t rank, size_t chunk) const {
    return {options_.rank, range(rank, chunk), options_.order.grain_order()};
  }

  // A message of the call in progress, by its index in offsets_.
  const at::Tensor& placed(size_t message) const { return placed_[message]; }

  // Waits for the other ranks' parts of a chunk of this rank's shard. This rank's own entry is null.
  RankMessages wait_for_parts(engine::Transport& transport, size_t chunk) const;

  MessageOffsets offsets_;

 private:
  // By chunk, then by rank: indices into offsets_. Entries for this rank itself are unused.
  struct ChunkMessages {
    std::vector<size_t> sent;      // This rank's part of rank r's shard.
    std::vector<size_t> received;  // Rank r's part of this rank's shard.
  };
  void send_part(engine::Transport& transport, int64_t peer, size_t chunk) const;

  const AllReduceOptions options_;
  const std::unique_ptr<const WireCodec> codec_;
  const std::shared_ptr<MessageMemory> memory_;
  const std::vector<std::vector<ElementRange>> chunks_;  // By rank: the chunks of its shard.
  std::vector<ChunkMessages> parts_;                     // By chunk.
  // State of the call in progress:
  AllReduceCall call_;
  std::vector<at::Tensor> placed_;
  std::vector<int64_t> receives_;  // By chunk, then by distance of the peer.
};

// Number of chunks into which each shard is cut. In variable formats each message has a separate step, so another
// implementation gets the same bits only if it cuts shards the same way.
int64_t two_shot_chunks(int64_t numel, int64_t world_size, WireFormat format);

// The result_ranges of a two-shot exchange.
std::vector<ElementRange> two_shot_result_ranges(const AllReduceOptions& options);

}  // namespace narrowcast::collectives
