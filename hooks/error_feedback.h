// What rounding left out, kept for the next step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

#include <narrowcast/comm_hook.h>
#include "hooks/bucket.h"
#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/mean/segments.h"

namespace narrowcast::hooks {

// The residuals of this rank, in the layout of the buckets. They belong to parameters: when the Reducer rebuilds its
// buckets, each parameter's residual goes with it. The residual of a mean that this rank sent then goes over to its own
// gradients' residual, times the number of ranks, where it has the same effect on later means: after a rebuild another
// rank may send that mean. Without parameters, a residual belongs to the bucket's index.
class ErrorFeedback {
 public:
  ErrorFeedback(int64_t rank, int64_t world_size) : rank_(rank), world_size_(world_size) {}

  // Of a bucket that lies in `layout`, and of this rank's shard of it. The numbers stay in place until the bucket's
  // layout changes. Buckets of a step come in the order of their indices, and a step's after those of the one before
  // are averaged.
  collectives::Residuals residuals(const c10d::GradBucket& bucket, const std::vector<ParameterSegment>& layout);

  // Between steps, of every parameter that is in a bucket:
  //   residual.NAME       float32 [numel of the parameter]: of this rank's own gradients
  //   mean_residual.NAME  float32: of the part of it whose mean this rank sends; absent if that is no part
  //   place.NAME          int64 [3]: index of its bucket, its first element there, and the first element of that part
  //                       in the parameter
  HookState state(const std::vector<NamedParameter>& parameters) const;

  // Resumes from them. In a world of the same size the next steps give the same bits. Else the residuals of means go
  // over to the own ones, and all are shared out anew so that they have the same effect on later means as before.
  // Throws CorruptInputError naming what is missing or does not fit.
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);

 private:
  struct Entry {
    std::vector<ParameterSegment> layout;
    collectives::Segment shard;
    at::Tensor own;   // float32 [numel of the bucket]
    at::Tensor mean;  // float32 [shard.numel]
  };
  void load_own(const HookState& state, const std::vector<NamedParameter>& parameters);
  void share_out(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);
  void retire_from(size_t index);
  Entry make_entry(int64_t numel, const std::vector<ParameterSegment>& layout, at::Device device);

  const int64_t rank_;
  const int64_t world_size_;
  std::map<size_t, Entry> entries_;                           // By index of the bucket.
  std::unordered_map<const void*, at::Tensor> by_parameter_;  // Of buckets that are no longer.
};

}  // namespace narrowcast::hooks
