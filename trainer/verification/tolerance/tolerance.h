// How far a hook's mean gradient may be from the mean without a hook, derived
// from the gradients themselves. docs/hooks.md states the formulas.
//
// With g_r the gradient of rank r, W ranks and u = 2^-24, the unit roundoff of
// float32, both means are sums of W terms of size |g_r| / W in some order, so
// each is within about W u sum_r |g_r| / W of the exact one. A hook that narrows
// the gradients adds its format's own error. Every bound is a sum over ranks, so
// each rank computes its term and the terms are all-reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "hooks/wire_options.h"
#include "ops/export.h"

namespace narrowcast::verification {

// This rank's term of the bound, per element: float64 in the shape of `bucket`, which is the 1-D
// gradient bucket that this rank gave to the hook, made with the options `wire`. Throws c10::ValueError for a hook
// without a known bound.
NARROWCAST_EXPORT at::Tensor error_bound(const std::string& hook, const at::Tensor& bucket, int64_t world_size,
                                         const hooks::WireOptions& wire = {});

// The tolerances of the reference test (torch.testing.assert_close) for the reference task.
struct ReferenceTolerance {
  double relative = 1e-5;
  double absolute = 0;
};

// 1e-5 and 0 for hooks that keep float32, 1e-5 and 1e-4 for the others; none for hooks that PyTorch does not have.
NARROWCAST_EXPORT std::optional<ReferenceTolerance> reference_tolerance(const std::string& hook);

}  // namespace narrowcast::verification
