// The quantised all-reduce on a stream: the host enqueues kernels and collectives and does not wait for them. For GPUs;
// CPUs use ops/comm/engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/collectives/all_reduce/stream/stream_groups.h"

namespace narrowcast::collectives {

class StreamExchange;  // The work that a StreamAllReduce enqueues.

// Replaces a 1-D array on `device` by its mean over the ranks. It uses the same routes, messages and arithmetic as
// AllReduceJob and so produces the same bits, except for the bits of a NaN. It calls collectives of the group's backend
// for the device. In one level, or in the two levels of `groups`:
//
// 1. In the node, float32: all-to-all of segments; their owners average them in the order of ranks.
// 2. Between nodes: a segment's owners exchange encoded messages, like the ranks in one level.
// 3. In the node: all-gather of the segments' means, encoded if the owners have encoded means, else float32.
//
// If a collective returns before it is done, as NCCL's do, work enqueued later on the same stream runs after it. Gloo's
// collectives block; the CPU is supported for tests.
class NARROWCAST_EXPORT StreamAllReduce {
 public:
  // Buffers are allocated for the device's current stream, on which `enqueue` must be called. With a codec there is
  // always one level. options.nodes is not read. `workspace` is shared with other exchanges on the same stream; null: a
  // new one is created.
  StreamAllReduce(const StreamRanks& ranks, const AllReduceJobOptions& options, at::Device device,
                  std::shared_ptr<StreamWorkspace> workspace = nullptr);
  ~StreamAllReduce();
  StreamAllReduce(const StreamAllReduce&) = delete;
  StreamAllReduce& operator=(const StreamAllReduce&) = delete;

  const std::vector<ElementRange>& exact() const { return exact_ranges_; }

  // Bytes that this rank sends per call, to all peers together. In two levels, only bytes between nodes count.
  int64_t payload_bytes() const;

  // Averages call.array, [numel] on the device, in place. All ranks make the same calls in the same order. Throws
  // c10::DistBackendError naming rank and exchange if the backend reports at once that a collective failed.
  void enqueue(const AllReduceCall& call);

 private:
  void enqueue_ordered(const AllReduceCall& call);

  const std::shared_ptr<StreamWorkspace> workspace_;
  const std::vector<ElementRange> exact_ranges_;
  const ElementOrder order_;
  ExactElements exact_;  // Counted in that order, like all of the exchange.
  const std::unique_ptr<StreamExchange> exchange_;
};

}  // namespace narrowcast::collectives
