// What rounding left out, kept for the next step.
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
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::hooks {

// The residuals of this rank, in the layout of the buckets: of the elements that it sends (collectives::SentParts).
// They belong to parameters: when the Reducer rebuilds its buckets, each parameter's residual goes with it. As another
// rank may send the element then, it becomes a part of this rank's own gradients, once, where it has the same effect on
// later means: with N nodes of W ranks, what is lacking of a node's mean times W / N, and of the mean times W. In one
// level every rank sends all elements, and what it lacks of its own gradients stays a residual. Without parameters, a
// residual belongs to the bucket's index.
class ErrorFeedback {
 public:
  // Of what `rank` sends in `format`.
  ErrorFeedback(int64_t rank, node::NodeLayout layout, WireFormat format)
      : rank_(rank), layout_(std::move(layout)), format_(format) {}

  // The residuals of a bucket that lies in `layout`. The numbers stay in place until the bucket's layout changes; what
  // is carried over is given until it has arrived: once, unless the mean is not finite. Buckets of a step come in the
  // order of their indices, and a step's after those of the one before are averaged.
  collectives::Residuals residuals(const c10d::GradBucket& bucket, const std::vector<ParameterSegment>& layout);

  // Multiplies all residuals, in place.
  void rescale(double factor);

  // One of them, to say on which device they are; undefined if there are none.
  at::Tensor any() const { return entries_.empty() ? at::Tensor() : entries_.begin()->second.own; }

  // Between steps, of every parameter that is in a bucket:
  //   residual.NAME       float32: of the part of it that this rank sends; all of it in one level
  //   mean_residual.NAME  float32: of the part of it whose mean this rank sends; absent if that is no part
  //                       (both of all of it, 0 where this rank does not send it, if the elements of buckets are dealt
  //                       out: collectives::ElementOrder)
  //   place.NAME          int64 [4]: index of its bucket, its first element there, and the first elements of the mean's
  //                       part and of the other part in the parameter; [3], without the last, where that is 0
  // where residuals were shared out and its bucket has not had its turn since,
  //   shared.NAME         float32: all of it, as it will become a part of this rank's own gradients
  // and, of two levels,
  //   nodes               int64 [W]: by rank, its node
  HookState state(const std::vector<NamedParameter>& parameters) const;

  // Resumes from them. In a world of the same size and layout the next steps give the same bits. Else all are shared
  // out anew so that they have the same effect on later means as before.
  // Throws CorruptInputError naming what is missing or does not fit.
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);

 private:
  struct Entry {
    std::vector<ParameterSegment> layout;
    int64_t numel;
    collectives::ElementOrder order;
    collectives::SentParts parts;  // In that order, as their residuals.
    at::Tensor own;                // float32 [parts.own.numel]
    at::Tensor mean;               // float32 [parts.mean.numel]
    at::Tensor
        carried;  // float32 [numel of the bucket], until it has arrived; undefined in one level, or if there is none
    bool is_given = false;  // Whether an exchange had it; what is left of it then is what was not finite.
    std::vector<at::Tensor> parameters = {};  // Kept, so that nobody else gets the identities in `layout`.
  };
  // Numbers at some places of a bucket.
  struct Held {
    at::Tensor numbers;
    collectives::Segment segment;
  };
  static Held in_bucket(const Entry& entry, const at::Tensor& residual, const collectives::Segment& part);
  static void take_from_bucket(const Entry& entry, const Held& held, const collectives::Segment& part,
                               const at::Tensor& residual);
  static bool has_arrived(const Entry& entry);
  static at::Tensor carried_of(Entry& entry);
  void load_own(const HookState& state, const std::vector<NamedParameter>& parameters);
  void share_out(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);
  void retire_from(size_t index);
  void retire_holders_of(const std::vector<ParameterSegment>& layout);
  void retire(const Entry& old);
  Entry make_entry(int64_t numel, const std::vector<ParameterSegment>& layout, at::Device device);

  bool sends_all() const { return layout_.segments() == 1 && !layout_.has_levels(); }

  const int64_t rank_;
  const node::NodeLayout layout_;
  const WireFormat format_;
  std::map<size_t, Entry> entries_;                           // By index of the bucket.
  std::unordered_map<const void*, at::Tensor> by_parameter_;  // They are of buckets that are no more.
  // Whether the first bucket has come since the state was loaded: fragments of an outer exchange may resume with
  // another one.
  bool has_begun_pass_ = false;
};

}  // namespace narrowcast::hooks
