// The quantised all-reduce where the hardware keeps the order: kernels and collectives are enqueued on a stream, and
// the host waits for none of them. For GPUs; ops/comm/engine has the CPU's way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/collectives/all_reduce/stream/stream_groups.h"

namespace narrowcast::collectives {

class StreamExchange;  // What a StreamAllReduce enqueues.

// Replaces a 1-D array on `device` by its mean over the ranks: by the same routes, messages and arithmetic as
// AllReduceJob, and so with the same bits, but by collectives of the group's backend for the device. (A NaN may
// have other bits.) In one level, or in the two of `groups`:
//
// 1. In the node, float32: all-to-all of segments; their owners average them in the order of ranks.
// 2. Between nodes: a segment's owners exchange codes as the ranks do in one level.
// 3. In the node: all-gather of the segments' means, as codes where the owners had codes of them, else float32.
//
// Where a collective returns before it is done, as NCCL's do, all that is enqueued after it on the same stream comes
// after it. (Gloo's are waited for: on the CPU this is for tests.)
class NARROWCAST_EXPORT StreamAllReduce {
 public:
  // What it keeps is allocated for the device's current stream, on which `enqueue` must be called. There is always one
  // level for a codec. options.nodes is not read. `workspace` is shared with others on the same stream; null: its own.
  StreamAllReduce(const StreamRanks& ranks, const AllReduceJobOptions& options, at::Device device,
                  std::shared_ptr<StreamWorkspace> workspace = nullptr);
  ~StreamAllReduce();
  StreamAllReduce(const StreamAllReduce&) = delete;
  StreamAllReduce& operator=(const StreamAllReduce&) = delete;

  const std::vector<Segment>& exact() const { return exact_segments_; }

  // Bytes that this rank sends per call, to all peers together; of two levels, between nodes.
  int64_t payload_bytes() const;

  // Averages call.array, [numel] on the device, in place. All ranks make the same calls in the same order. Throws
  // c10::DistBackendError naming rank and exchange if the backend says at once that a collective failed.
  void enqueue(const AllReduceCall& call);

 private:
  void enqueue_ordered(const AllReduceCall& call);

  const std::shared_ptr<StreamWorkspace> workspace_;
  const std::vector<Segment> exact_segments_;
  const ElementOrder order_;
  ExactElements exact_;  // Of the array in that order, as all of the exchange.
  const std::unique_ptr<StreamExchange> exchange_;
};

}  // namespace narrowcast::collectives
