// The mean of one array where the hardware keeps the order: kernels and collectives are enqueued on a stream.
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
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/collectives/all_reduce/memory/chunk_streams.h"
#include "ops/collectives/all_reduce/stream/shard_messages.h"
#include "ops/collectives/all_reduce/stream/stream_groups.h"

namespace narrowcast::collectives {

// How the exchanges of a StreamAllReduce call collectives.
struct CollectiveCalls {
  int64_t rank = 0;  // As errors name it.
  at::Device device = at::kCPU;
  std::shared_ptr<CollectiveOrder> order = nullptr;  // Null where one stream calls all.

  // Calls body(), which is collective `what`. c10::DistBackendError if that throws.
  void call(const std::string& what, const std::function<void()>& body) const;
};

// What a call needs for as long as it is enqueued.
struct StreamMemory {
  at::Tensor bytes;  // uint8, at least workspace_bytes(), on the device, which begins where a slot may.
  ChunkStreams& streams;
};

// What a StreamAllReduce enqueues.
class StreamExchange {
 public:
  virtual ~StreamExchange() = default;

  // As StreamAllReduce's.
  virtual int64_t payload_bytes() const = 0;

  virtual int64_t workspace_bytes() const = 0;

  // As StreamAllReduce's. `exact`: of call.array, of as many elements as the options say.
  virtual void enqueue(const AllReduceCall& call, ExactElements& exact, const StreamMemory& memory) = 0;
};

// In one level, between the ranks of `group`:
// One shot:  encode the array; all-gather the messages; average them.
// Two shots: encode all shards but the own; all-to-all; average the parts of the own shard with the own numbers and
//            encode the mean; all-gather the means; decode them.
// Large arrays do so chunk by chunk, on two streams in turn. Exact elements are in the messages of the first chunk.
class OneLevelStreamExchange final : public StreamExchange {
 public:
  // An exchange of options.numel elements, and of `exact_numel` exact ones. Which rank this is, the group says.
  // options.exact and options.nodes are not its business.
  OneLevelStreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, AllReduceJobOptions options, int64_t exact_numel,
                         CollectiveCalls collectives);

  Route route() const { return route_; }
  int64_t payload_bytes() const override;
  int64_t workspace_bytes() const override;
  void enqueue(const AllReduceCall& call, ExactElements& exact, const StreamMemory& memory) override;

  // What that is but for the exact elements' way out of the array and back: `exact`, float32 [exact_numel], become
  // their means, and those in the array should be 0.
  void enqueue_values(const AllReduceCall& call, const at::Tensor& exact, const StreamMemory& memory);

  // With two shots, instead of that: takes all but the last step. `messages`, uint8 [ShardMessages::bytes], gets the
  // means, which `exact` need not.
  void enqueue_undecoded(const AllReduceCall& call, const at::Tensor& exact, const StreamMemory& memory,
                         const at::Tensor& messages);

 private:
  // A chunk of one shot: the message that is sent lies before those of all ranks.
  struct WholeChunk {
    Segment range;
    int64_t begin = 0;  // In the workspace.
    int64_t message_bytes = 0;
    int64_t slot = 0;
    int64_t exact_begin = 0;  // In the slot.
  };
  // What a call is, for the steps of its chunks.
  struct Call {
    const AllReduceCall& mean;
    AllReduceCall exact;
    at::Tensor workspace;
    at::Tensor means;  // Messages of two shots.
  };

  int64_t rank() const { return group_->getRank(); }
  int64_t world_size() const { return group_->getSize(); }
  Segment all_exact() const { return {0, exact_numel_}; }
  bool has_exact(int64_t chunk) const { return chunk == 0 && exact_numel_ > 0; }
  std::vector<Segment> ranges_of_one_shot() const;
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
  const WireCodec& wire_codec_;
  const WireCodec& exact_codec_;
  const std::unique_ptr<AllReduceCodec> codec_;  // For one shot.
  const std::vector<WholeChunk> whole_chunks_;   // For one shot.
  const ShardMessages shard_messages_;           // For two.
};

}  // namespace narrowcast::collectives
