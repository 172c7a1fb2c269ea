// PowerSGD's state from step to step, by parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

#include <narrowcast/comm_hook.h>
#include "hooks/row/bucket.h"
#include "ops/collectives/power_sgd/power_sgd_job.h"

namespace narrowcast::hooks {

// The states of a hook's buckets (collectives::LowRankState). Residuals and factors belong to parameters and follow
// them when the Reducer rebuilds its buckets. If the whole bucket is one matrix, its factor and the residual of its
// padding belong to the bucket. They are kept only while it holds the same parameters in the same places. For a bucket
// without parameters everything belongs to its index.
class PowerSgdStates {
 public:
  struct Options {
    bool keeps_residual = true;
    bool alternates = false;
    bool batched = false;  // The whole bucket is one matrix.
    int64_t rank = 1;      // Rank of the approximation.
    int64_t world_size = 1;
  };
  explicit PowerSgdStates(const Options& options) : options_(options) {}

  struct BucketState {
    const collectives::CompressionPlan& plan;
    std::shared_ptr<collectives::LowRankState> state;
  };

  // The state of the hook's next bucket. The bucket has `ranges`, its arithmetic uses `dtype`, and the state is on
  // its device. Returns the same state as long as these stay the same; otherwise plan() returns how to compress the
  // bucket.
  BucketState state_of(const c10d::GradBucket& bucket, const ParameterRanges& ranges, at::ScalarType dtype,
                       const std::function<collectives::CompressionPlan()>& plan);

  // To be called between steps. Covers every parameter that is in a bucket, or whose loaded state no bucket has taken
  // yet. Tensors have the arithmetic's dtype. Names are:
  // - residual.NAME  [numel].
  // - q.NAME         [m, r], or p.NAME [n, r] if the next step begins with P; absent until there is one.
  //
  // If the whole bucket is one matrix, the names are for each parameter
  // - residual.NAME.
  // - place.NAME     int64 [2]: the index of its bucket and its first element there.
  //
  // and for each bucket
  // - padding.INDEX  [elements that pad the bucket to a square].
  // - q.INDEX        [side, r], or p.INDEX.
  HookState state(const std::vector<NamedParameter>& parameters) const;

  // Resumes from saved state. In a world of the same size the next steps produce the same bits. Otherwise residuals are
  // redistributed so that they have the same effect on later means, and factors are taken from rank 0: they are equal
  // on all ranks. CorruptInputError naming the entry that does not fit.
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);

  // Multiplies all residuals, in place.
  void rescale(double factor);

  // The residual of any bucket, to find the device of the residuals. Undefined if there is no bucket.
  at::Tensor any_residual() const { return entries_.empty() ? at::Tensor() : entries_.begin()->second.state->residual; }

 private:
  using States = std::shared_ptr<collectives::LowRankState>;
  // One of the two factors.
  struct Factor {
    at::Tensor numbers;  // [m, r] or [n, r], or undefined
    bool is_p = false;
  };
  // State of a parameter that is in no bucket at present.
  struct Kept {
    at::Tensor residual;  // [numel], or undefined
    Factor factor;
  };
  // State of a whole bucket that has not come yet.
  struct KeptBucket {
    ParameterRanges ranges;
    at::Tensor padding;
    Factor factor;
  };
  struct Entry {
    ParameterRanges ranges;
    collectives::CompressionPlan plan;
    at::TensorOptions numbers;  // Options of all tensors of the state.
    States state;
    WeakParameters parameters = {};  // The identities in `ranges` stay unique.
  };
  void retire(const Entry& old);
  void take_up(Entry& entry, size_t index);
  void add_waiting(const ParameterNames& names, HookState& state) const;
  void load_parameter(const HookState& state, const NamedParameter& parameter);
  void load_bucket(const HookState& state, const NamedParameter& parameter);
  void check_buckets() const;
  Factor factor_of(const HookState& state, const std::string& name) const;

  const Options options_;
  std::map<size_t, Entry> entries_;  // By bucket index.
  std::unordered_map<const void*, Kept> by_parameter_;
  std::map<size_t, KeptBucket> by_bucket_;
};

}  // namespace narrowcast::hooks
