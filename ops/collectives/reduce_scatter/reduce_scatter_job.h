// The quantised reduce-scatter as a job of an engine, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/reduction.h>
#include <narrowcast/wire_formats.h>
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/engine/engine.h"

namespace narrowcast::collectives {

// The operator's name in errors.
inline constexpr const char* kQuantizedReduceScatter = "quantized_reduce_scatter";

// A call. Both tensors are contiguous and on one device.
struct ReduceScatter {
  at::Tensor shard;  // [n]
  at::Tensor input;  // [W n]: the parts for the shards of ranks 0 to W-1.
  WireFormat format = WireFormat::kFp32;
  Reduction reduction = Reduction::kMean;

  at::Tensor part_for(int64_t rank) const { return input.narrow(0, rank * shard.numel(), shard.numel()); }
};

// One call, for a single submission. It has one hop, the first one of the two-shot all-reduce, with two differences:
// the parts are of equal size, and a rank's own part is also rounded to the format. All ranks' parts of a shard then
// have the same rounding errors as if another rank owned it.
//
// start:  posts the receives of this rank's shard. For each chunk of the shards, encodes the parts for ranks r+1, r+2,
//         ..., r-1 and sends each to its rank. Then it encodes the own part.
// finish: for each chunk, waits for the parts of the other ranks, and writes their mean or sum to the shard. Nothing is
//         written before all parts are encoded.
class ReduceScatterJob final : public engine::Job {
 public:
  // This rank and the number of ranks, at least 2, are those of the engine's group. Takes all memory that the job
  // needs, so that a rank with too little throws before it sends anything. The memory is used until finish has
  // returned.
  ReduceScatterJob(ReduceScatter call, int64_t rank, int64_t world_size, MessageMemory& memory);

  std::string name() const override { return kQuantizedReduceScatter; }
  int64_t advances() const override { return 0; }
  void start(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;

 private:
  void post_receives(engine::Transport& transport);
  void encode(size_t chunk, int64_t rank, const at::Tensor& message) const;

  // The message of this rank's part for rank `to`, which is not this rank.
  const at::Tensor& sent(size_t chunk, int64_t to) const { return placed_[sent_[chunk * ranks_ + to]]; }
  // The message of the part of rank `from` for this rank's shard.
  const at::Tensor& received(size_t chunk, int64_t from) const { return placed_[received_[chunk * ranks_ + from]]; }

  const ReduceScatter call_;
  const int64_t rank_;
  const int64_t ranks_;
  const std::unique_ptr<const WireCodec> codec_;
  const std::vector<ElementRange> chunks_;  // The chunks of a shard.
  MessageOffsets offsets_;
  std::vector<size_t> sent_;      // Indices into offsets_: by chunk, then by rank. The entry of this rank is empty.
  std::vector<size_t> received_;  // The same.
  std::vector<at::Tensor> placed_;
  std::vector<int64_t> receives_;  // By chunk, then by distance of the peer.
};

}  // namespace narrowcast::collectives
