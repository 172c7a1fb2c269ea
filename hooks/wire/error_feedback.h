// What rounding left out, kept for the next step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

#include "hooks/wire/bucket_layout.h"
#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/wire/run.h"
#include "ops/export.h"

namespace narrowcast::hooks {

// The residuals of this rank, in the layout of the buckets. They belong to parameters: when the Reducer rebuilds its
// buckets, each parameter's residual goes with it. The residual of a mean that this rank sent then goes over to its own
// gradients' residual, times the number of ranks, where it has the same effect on later means: after a rebuild another
// rank may send that mean. Without parameters, a residual belongs to the bucket's index.
class NARROWCAST_EXPORT ErrorFeedback {
 public:
  ErrorFeedback(int64_t rank, int64_t world_size) : rank_(rank), world_size_(world_size) {}

  // Of a bucket that lies in `layout`, and of this rank's shard of it. The numbers stay in place until the bucket's
  // layout changes. Buckets of a step come in the order of their indices, and a step's after those of the one before
  // are averaged.
  collectives::Residuals residuals(const c10d::GradBucket& bucket, const std::vector<ParameterRun>& layout);

 private:
  struct Entry {
    std::vector<ParameterRun> layout;
    collectives::Run shard;
    at::Tensor own;   // float32 [numel of the bucket]
    at::Tensor mean;  // float32 [shard.numel]
  };
  void retire_from(size_t index);
  Entry make_entry(int64_t numel, const std::vector<ParameterRun>& layout);

  const int64_t rank_;
  const int64_t world_size_;
  std::map<size_t, Entry> entries_;                           // By index of the bucket.
  std::unordered_map<const void*, at::Tensor> by_parameter_;  // Of buckets that are no longer.
};

}  // namespace narrowcast::hooks
