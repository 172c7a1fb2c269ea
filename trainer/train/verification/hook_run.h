// A model's gradients, alone and through DistributedDataParallel with a hook, and the bound on their difference to
// gradients without a hook.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/ddp_options.h>
#include <narrowcast/model.h>
#include <narrowcast/process_group.h>
#include "hooks/row/error_bound.h"

namespace narrowcast::verification {

// A bucket as passed to the hook.
struct RecordedBucket {
  at::Tensor gradients;                // 1-D, a copy: this rank's own
  std::vector<at::Tensor> parameters;  // in the bucket's order
  std::vector<int64_t> offsets;        // of each parameter's gradient in `gradients`
  bool is_last = false;
};

// Passes every bucket to `inner` and keeps a copy of it.
class RecordingHook : public hooks::CommHook {
 public:
  explicit RecordingHook(std::unique_ptr<hooks::CommHook> inner);

  std::string_view name() const override { return inner_->name(); }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return inner_->parseHookResult(result); }

  // The recorded hook; it counts the payload.
  const hooks::CommHook& inner() const { return *inner_; }

  // The buckets since the last call, in order.
  std::vector<RecordedBucket> take_buckets();

 private:
  std::unique_ptr<hooks::CommHook> inner_;
  std::vector<RecordedBucket> buckets_;
};

// The outcome of the reference test's case of GradBucket::isLast.
struct IsLastResult {
  int64_t buckets = 0;  // in the second backward pass; a single one would prove nothing
  bool passed = false;  // whether there are several, and the flag is set only for the final one, on all ranks
};

// A collective: two backward passes through eleven bias-free Linear layers with a hook that records the flags. The
// reference test has widths of 2 and 4000 and buckets of 25 MiB, which takes 2 GB of memory on every rank. Here width
// and bucket size are scaled down, so that each wide layer still fills a separate bucket.
IsLastResult check_is_last(const ProcessGroupPtr& group);

// Makes the hook that the options name, with their options for it; nullptr for "none".
using HookFactory = std::function<std::unique_ptr<hooks::CommHook>(const DdpOptions& ddp)>;

// One forward and backward pass to be run under every hook.
struct GradientProblem {
  std::shared_ptr<models::Model> model;  // the same parameters on all ranks
  models::Batch batch;                   // this rank's own
  ProcessGroupPtr group;
  DdpOptions ddp = {};  // each option for a hook applies only to the hook of that name
  // This rank's share of the samples of all ranks, for DistributedDataParallel::backward. Empty: all have as many.
  std::optional<double> weight = {};
};

// The gradients of this rank's batch without other ranks, copied, one per parameter; zeros for unused parameters. With
// a weight they are multiplied by it and by the number of ranks, so that the mean over ranks is the mean over samples.
// Here and below, parameters are those that require a gradient.
std::vector<at::Tensor> local_gradients(const GradientProblem& problem);

// A rank's results of one backward pass, by parameter.
struct PassResult {
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> bounds;  // on the difference to the mean without a hook; see PassBounds::of_pass
};

// A rank's results of a hook's passes.
struct HookRun {
  std::vector<PassResult> passes;  // two: in the first layout of buckets, and in the one the Reducer rebuilds
  int64_t payload_bytes_sent = 0;  // by this rank in a pass
  double seconds = 0;              // of a pass: forward, backward and exchange
};

// A collective: runs passes with the hook that `make_hook` makes for problem.ddp. Parameters stay unchanged. Throws
// c10::DistBackendError if a peer failed.
HookRun run_hook(const GradientProblem& problem, const HookFactory& make_hook);

// The bounds for the hook that `ddp` names, pass by pass: with error feedback a pass begins with the residuals of
// earlier passes.
class PassBounds {
 public:
  PassBounds(ProcessGroupPtr group, DdpOptions ddp) : group_(std::move(group)), ddp_(std::move(ddp)) {}

  // A collective. The bounds of the next pass, in which the hook received `buckets`, by parameter. They bound the
  // difference of the gradients or, with error feedback, of their sums over all passes so far. float64, the same on all
  // ranks. Throws c10::DistBackendError if a peer failed.
  std::vector<at::Tensor> of_pass(const std::vector<RecordedBucket>& buckets,
                                  const std::vector<at::Tensor>& parameters);

 private:
  using ByParameter = std::map<at::TensorImpl*, at::Tensor>;  // float64 [numel of the parameter]

  static at::Tensor gathered(const RecordedBucket& bucket, const ByParameter& values);
  static void scatter(const at::Tensor& values, const RecordedBucket& bucket, ByParameter& by_parameter);
  at::Tensor residual_after(const hooks::ErrorTerms& terms) const;

  const ProcessGroupPtr group_;
  const DdpOptions ddp_;
  ByParameter residuals_;  // bound on this rank's additions to its gradients in the next pass
  ByParameter float32_;    // rounding errors of float32 in all passes so far
};

}  // namespace narrowcast::verification
