// The quantised reduce-scatter on a stream, for GPUs: the host enqueues kernels and a collective and does not wait.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/collectives/reduce_scatter/reduce_scatter_job.h"

namespace narrowcast::collectives {

// Encodes all parts; one all-to-all of the group's backend for the tensors' device; then the mean or the sum. The bits
// are those of ReduceScatterJob, except for the bits of a NaN. All work is enqueued on the current stream. Messages
// have memory for the time of the call. c10::DistBackendError naming this rank if the backend reports at once that the
// collective failed. Gloo's collectives block; the CPU is supported for tests.
void enqueue_reduce_scatter(const ReduceScatter& call, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace narrowcast::collectives
