// The mean of one array on a stream: the host enqueues kernels and collectives.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/collectives/all_reduce/memory/chunk_streams.h"
#include "ops/collectives/all_reduce/stream/shard_messages.h"
#include "ops/collectives/all_reduce/stream/stream_groups.h"

namespace narrowcast::collectives {

// How the exchanges of a StreamAllReduce call collectives.
struct CollectiveCalls {
  int64_t rank = 0;  // Rank in errors.
  at::Device device = at::kCPU;
  std::shared_ptr<CollectiveOrder> order = nullptr;  // Null if one stream calls all collectives.

  // Calls body(), which runs the collective named `what`. c10::DistBackendError if body throws.
  void call(const std::string& what, const std::function<void()>& body) const;
};

// Memory of a call while it is enqueued.
struct StreamMemory {
  at::Tensor bytes;  // uint8, at least workspace_bytes(), on the device; begins at a multiple of kSlotBytes.
  ChunkStreams& streams;
};

// The work that a StreamAllReduce enqueues.
class StreamExchange {
 public:
  virtual ~StreamExchange() = default;

  // See StreamAllReduce::payload_bytes.
  virtual int64_t payload_bytes() const = 0;

  virtual int64_t workspace_bytes() const = 0;

  // See StreamAllReduce::enqueue. `exact`: exact elements of call.array, as many as the options have.
  virtual void enqueue(const AllReduceCall& call, ExactElements& exact, const StreamMemory& memory) = 0;
};

// One level, between the ranks of `group`:
// One shot:  encode the array; all-gather the messages; average them.
// Two shots: encode all shards except the own one; all-to-all; average the parts of the own shard with the own
//            values and encode the mean; all-gather the means; decode them.
// Large arrays do this chunk by chunk, on two streams in turn. Exact elements are in the messages of the first chunk.
class OneLevelStreamExchange final : public StreamExchange {
 public:
  // An exchange of options.numel elements and `exact_numel` exact ones. The rank is the group's. options.exact and
  // options.nodes are not read.
  OneLevelStreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, AllReduceJobOptions options, int64_t exact_numel,
                         CollectiveCalls collectives);

  Route route() const { return route_; }
  int64_t payload_bytes() const override;
  int64_t workspace_bytes() const override;
  void enqueue(const AllReduceCall& call, ExactElements& exact, const StreamMemory& memory) override;

  // As enqueue, but the caller takes exact elements out of the array and puts them back. `exact`, float32
  // [exact_numel], is replaced by its mean; the exact elements in the array should be 0.
  void enqueue_values(const AllReduceCall& call, const at::Tensor& exact, const StreamMemory& memory);

  // Two shots only, instead of enqueue_values: all steps except decoding. `messages`, uint8 [ShardMessages::bytes],
  // gets the encoded means; `exact` need not get its mean.
  void enqueue_undecoded(const AllReduceCall& call, const at::Tensor& exact, const StreamMemory& memory,
                         const at::Tensor& messages);

 private:
  // A chunk of one shot. The message that is sent lies before the messages of all ranks.
  struct WholeChunk {
    ElementRange range;
    int64_t begin = 0;  // Offset in the workspace.
    int64_t message_bytes = 0;
    int64_t slot = 0;
    int64_t exact_begin = 0;  // Offset in the slot.
  };
  // A call, as the steps of its chunks need it.
  struct Call {
    const AllReduceCall& mean;
    AllReduceCall exact;
    at::Tensor workspace;
    at::Tensor means;  // Messages of two shots.
  };

  int64_t rank() const { return group_->getRank(); }
  int64_t world_size() const { return group_->getSize(); }
  ElementRange all_exact() const { return {0, exact_numel_}; }
  bool has_exact(int64_t chunk) const { return chunk == 0 && exact_numel_ > 0; }
  std::vector<ElementRange> ranges_of_one_shot() const;
  std::vector<WholeChunk> whole_chunks() const;
  void one_shot(const Call& call, int64_t chunk) const;
  void exchange_parts(const Call& call, int64_t chunk) const;
  void send_mean(const Call& call, int64_t chunk) const;
  at::Tensor received_parts(const Call& call, int64_t chunk) const;

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const AllReduceJobOptions options_;
  const int64_t exact_numel_;
  CollectiveCalls collectives_;
  const Route route_;
  const std::unique_ptr<const WireCodec> wire_codec_;
  const std::unique_ptr<const WireCodec> exact_codec_;
  const std::unique_ptr<AllReduceCodec> codec_;  // For one shot.
  const std::vector<WholeChunk> whole_chunks_;   // For one shot.
  const ShardMessages shard_messages_;           // For two shots.
};

}  // namespace narrowcast::collectives
