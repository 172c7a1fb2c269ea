#include "ops/collectives/reduce_scatter/reduce_scatter_job.h"

#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/algorithms/first_hop.h"

namespace narrowcast::collectives {
namespace {

// While one chunk is encoded, another one is being sent. Some formats' messages cannot be
// split.
std::vector<ElementRange> chunks_of(const ReduceScatter& call, int64_t ranks) {
  const bool splits = codec::wire::can_be_split(call.format);
  return cut(call.shard.numel(), splits ? two_shot_chunks(call.input.numel(), ranks, call.format) : 1);
}

}  // namespace

ReduceScatterJob::ReduceScatterJob(ReduceScatter call, int64_t rank, int64_t world_size, MessageMemory& memory)
    : call_(std::move(call)),
      rank_(rank),
      ranks_(world_size),
      codec_(make_wire_codec(call_.format, at::kCPU)),
      chunks_(chunks_of(call_, world_size)) {
  for (const ElementRange& chunk : chunks_) {
    const int64_t bytes = encoded_size(chunk.numel, call_.format);
    for (int64_t peer = 0; peer < ranks_; ++peer) {
      sent_.push_back(offsets_.add(peer == rank_ ? 0 : bytes));
      received_.push_back(offsets_.add(bytes));
    }
  }
  placed_ = offsets_.place_in(memory);
}

void ReduceScatterJob::start(engine::Transport& transport) {
  post_receives(transport);
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    for (int64_t distance = 1; distance < ranks_; ++distance) {
      const int64_t peer = transport.peer_after(distance);
      encode(chunk, peer, sent(chunk, peer));
      transport.send({sent(chunk, peer), peer, static_cast<int64_t>(chunk)});
    }
  }
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    encode(chunk, rank_, received(chunk, rank_));
  }
}

void ReduceScatterJob::post_receives(engine::Transport& transport) {
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    for (int64_t distance = 1; distance < ranks_; ++distance) {
      const int64_t peer = transport.peer_before(distance);
      receives_.push_back(transport.post_receive({received(chunk, peer), peer, static_cast<int64_t>(chunk)}));
    }
  }
}

void ReduceScatterJob::encode(size_t chunk, int64_t rank, const at::Tensor& message) const {
  codec_->encode({}, {call_.part_for(rank), chunks_[chunk]}, message.mutable_data_ptr<uint8_t>());
}

at::Tensor ReduceScatterJob::finish(engine::Transport& transport) {
  const auto peers = static_cast<size_t>(ranks_ - 1);
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    for (size_t i = 0; i < peers; ++i) {
      transport.wait_receive(receives_[chunk * peers + i]);
    }
    RankMessages parts;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      parts.push_back(received(chunk, rank).const_data_ptr<uint8_t>());
    }
    codec_->reduce(parts, {call_.shard, chunks_[chunk]}, call_.reduction);
  }
  return call_.shard;
}

}  // namespace narrowcast::collectives
