// Error feedback: rounding errors of a step, kept for the next step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/bucket.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::hooks {

// The residuals of this rank, by bucket, for the elements that it sends (collectives::SentParts).
// Without parameters, a residual belongs to the bucket's index. Else residuals belong to parameters. When the Reducer
// rebuilds its buckets, each parameter's residual moves with the parameter.
//
// In one level every rank sends all elements, and the error of the rank's gradients stays a residual. In two levels,
// another rank may send an element after a rebuild. The residual is then added once to this rank's own gradients, with
// a weight that gives it the same effect on later means. With N nodes and W ranks, the weight is W / N for the residual
// of a node's mean and W for the residual of the mean.
class ErrorFeedback {
 public:
  // For the elements that `rank` sends in `format`.
  ErrorFeedback(int64_t rank, node::NodeLayout layout, WireFormat format)
      : rank_(rank), layout_(std::move(layout)), format_(format) {}

  // The residuals of a bucket with these `ranges`. The numbers stay in place until the ranges change.
  // Residuals that are carried over from earlier ranges are passed until they have arrived: once, unless the mean is
  // not finite. Buckets of a step come in the order of their indices, after the buckets of the step before are
  // averaged.
  collectives::Residuals residuals(const c10d::GradBucket& bucket, const ParameterRanges& ranges);

  // Multiplies all residuals, in place.
  void rescale(double factor);

  // One of the residuals, for its device; undefined without residuals.
  at::Tensor any() const { return entries_.empty() ? at::Tensor() : entries_.begin()->second.own; }

  // The state between steps. For every parameter that is in a bucket:
  //   residual.NAME       float32: of the part that this rank sends; in one level the whole parameter
  //   mean_residual.NAME  float32: of the part whose mean this rank sends; absent without such a part
  //   place.NAME          int64 [4]: index of its bucket, its first element there, and the first element in the
  //                       parameter of the mean's part and of the other part. In one level int64 [3], without the last
  //
  // If the elements of buckets are dealt out (collectives::ElementOrder), both residuals have the size of the
  // parameter, with 0 for elements that this rank does not send.
  //
  // If residuals were shared out and the parameter's bucket has not been averaged since:
  //   shared.NAME         float32, size of the parameter: will be added to this rank's own gradients
  //
  // With two levels:
  //   nodes               int64 [W]: the node of each rank
  HookState state(const std::vector<NamedParameter>& parameters) const;

  // Resumes from the saved states. In a world of the same size and layout the next steps give the same bits. Else all
  // residuals are shared out anew, so that they have the same effect on later means as before. Without a state of its
  // own, a rank begins without residuals.
  // Throws CorruptInputError naming what is missing or does not fit, and c10::ValueError for residuals of parameters
  // that are not given.
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);

 private:
  struct Entry {
    ParameterRanges ranges;
    int64_t numel;
    collectives::ElementOrder order;
    collectives::SentParts parts;  // In that order, as the residuals.
    at::Tensor own;                // float32 [parts.own.numel]
    at::Tensor mean;               // float32 [parts.mean.numel]
    // float32 [numel of the bucket], until it has arrived. Undefined in one level, and without carried residuals.
    at::Tensor carried;
    // Whether `carried` was passed to an all-reduce. Elements that are not 0 then have not arrived.
    bool is_given = false;
    WeakParameters parameters = {};  // The identities in `ranges` stay unique.
  };
  // Numbers at some places of a bucket.
  struct Held {
    at::Tensor numbers;
    collectives::ElementRange range;
  };
  static Held in_bucket(const Entry& entry, const at::Tensor& residual, const collectives::ElementRange& part);
  static void take_from_bucket(const Entry& entry, const Held& held, const collectives::ElementRange& part,
                               const at::Tensor& residual);
  static bool has_arrived(const Entry& entry);
  static at::Tensor carried_of(Entry& entry);
  void load_own(const HookState& state, const std::vector<NamedParameter>& parameters);
  void share_out(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);
  void retire_from(size_t index);
  void retire_holders_of(const ParameterRanges& ranges);
  void retire(const Entry& old);
  Entry make_entry(int64_t numel, const ParameterRanges& ranges, at::Device device);

  bool sends_all() const { return layout_.segments() == 1 && !layout_.has_levels(); }

  const int64_t rank_;
  const node::NodeLayout layout_;
  const WireFormat format_;
  std::map<size_t, Entry> entries_;                           // By index of the bucket.
  std::unordered_map<const void*, at::Tensor> by_parameter_;  // Residuals from former buckets.
  // Whether the first bucket has come since the state was loaded. Fragments of an outer optimizer may resume with
  // another bucket.
  bool has_begun_pass_ = false;
};

}  // namespace narrowcast::hooks
