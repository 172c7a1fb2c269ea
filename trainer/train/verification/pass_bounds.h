// How far the gradients of a hook's passes may be from those without a hook.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/process_group.h>
#include "hooks/error_bound.h"
#include "trainer/train/verification/recording_hook.h"

namespace narrowcast::verification {

// The bounds for the hook that `ddp` names, pass by pass: with error feedback a pass begins with what the passes before
// left out.
class PassBounds {
 public:
  PassBounds(ProcessGroupPtr group, DdpOptions ddp) : group_(std::move(group)), ddp_(std::move(ddp)) {}

  // A collective. The bounds of the next pass, in which the hook was given `buckets`, by parameter: on the difference
  // of the gradients or, with error feedback, of their sums over all passes so far. float64, the same on all ranks.
  // Throws c10::DistBackendError if a peer failed.
  std::vector<at::Tensor> of_pass(const std::vector<RecordedBucket>& buckets,
                                  const std::vector<at::Tensor>& parameters);

 private:
  using ByParameter = std::map<at::TensorImpl*, at::Tensor>;  // float64 [numel of the parameter]

  static at::Tensor gathered(const RecordedBucket& bucket, const ByParameter& values);
  static void scatter(const at::Tensor& values, const RecordedBucket& bucket, ByParameter& by_parameter);
  at::Tensor sum_over_ranks(at::Tensor term) const;
  at::Tensor residual_after(const hooks::ErrorTerms& terms) const;

  const ProcessGroupPtr group_;
  const DdpOptions ddp_;
  ByParameter residuals_;  // at most what this rank adds to its gradients in the next pass
  ByParameter float32_;    // the roundings of float32 in all passes so far
};

}  // namespace narrowcast::verification
