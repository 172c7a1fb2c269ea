// What PowerSGD keeps from step to step, by parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
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

// The states of a hook's buckets (collectives::LowRankState). Residuals and factors belong to parameters: when the
// Reducer rebuilds its buckets, they go with these. Where the whole bucket is one matrix, its factor and the residual
// of its padding belong to the bucket, and only go on while that holds the same parameters in the same places. Without
// parameters, all belongs to the bucket's index.
class PowerSgdStates {
 public:
  struct Options {
    bool keeps_residual = true;
    bool alternates = false;
    bool batched = false;  // The whole bucket is one matrix.
    int64_t rank = 1;      // The approximation's.
    int64_t world_size = 1;
  };
  explicit PowerSgdStates(const Options& options) : options_(options) {}

  // The state of the next bucket of the hook, which lies in `layout` and is compressed as the plan says, in arithmetic
  // of `dtype`, on the bucket's device. It stays the same object as long as these do.
  std::shared_ptr<collectives::LowRankState> state_of(const c10d::GradBucket& bucket,
                                                      const std::vector<ParameterSegment>& layout,
                                                      const collectives::CompressionPlan& plan, at::ScalarType dtype);

  // Between steps, of every parameter that is in a bucket, in the arithmetic's dtype, or was loaded and is in none yet:
  //   residual.NAME  [numel]
  //   q.NAME         [m, r], or p.NAME [n, r] where the next step begins with that one; absent until there is one
  // or, where the whole bucket is one matrix, of the parameters residual.NAME and place.NAME, int64 [2]: the index of
  // its bucket and its first element there, and of the bucket
  //   padding.INDEX  [what the bucket lacks of a square]
  //   q.INDEX        [side, r], or p.INDEX
  HookState state(const std::vector<NamedParameter>& parameters) const;

  // Resumes from them. In a world of the same size the next steps give the same bits. Else the residuals are shared out
  // so that they have the same effect on later means as before, and factors are rank 0's: they are equal on all ranks.
  // Throws CorruptInputError naming what does not fit.
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);

  // Multiplies all residuals, in place.
  void rescale(double factor);

  // One of those of buckets, to say on which device they are; undefined if there are none.
  at::Tensor any_residual() const { return entries_.empty() ? at::Tensor() : entries_.begin()->second.state->residual; }

 private:
  using ParameterSegments = std::vector<ParameterSegment>;
  using States = std::shared_ptr<collectives::LowRankState>;
  // One of the two factors.
  struct Factor {
    at::Tensor numbers;  // [m, r] or [n, r], or undefined
    bool is_p = false;
  };
  // What a parameter has that is in no bucket at present.
  struct Kept {
    at::Tensor residual;  // [numel], or undefined
    Factor factor;
  };
  // What a whole bucket has that has not come yet.
  struct KeptBucket {
    ParameterSegments layout;
    at::Tensor padding;
    Factor factor;
  };
  struct Entry {
    ParameterSegments layout;
    collectives::CompressionPlan plan;
    at::TensorOptions numbers;  // All tensors of the state have them.
    States state;
    std::vector<at::Tensor> parameters;  // Kept, so that nobody else gets the identities in `layout`.
  };
  bool fits(const Entry& entry, const Entry& wanted) const;
  void retire(const Entry& old);
  void take_up(Entry& entry, size_t index);
  void add_waiting(const ParameterNames& names, HookState& state) const;
  void load_parameter(const HookState& state, const NamedParameter& parameter);
  void load_bucket(const HookState& state, const NamedParameter& parameter);
  void check_buckets() const;
  Factor factor_of(const HookState& state, const std::string& name) const;

  const Options options_;
  std::map<size_t, Entry> entries_;  // By index of the bucket.
  std::unordered_map<const void*, Kept> by_parameter_;
  std::map<size_t, KeptBucket> by_bucket_;
};

}  // namespace narrowcast::hooks
