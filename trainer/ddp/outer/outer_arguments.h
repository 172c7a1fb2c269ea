// The arguments of OuterOptimizer, checked on each rank and compared between ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/outer_options.h>
#include <narrowcast/process_group.h>

namespace narrowcast {

int64_t elements_of(const std::vector<at::Tensor>& parameters);

}  // namespace narrowcast

namespace NARROWCAST_EXPORT narrowcast {  // Used by our other libraries as well.

// The parameters that get gradients, each once, in the order of the groups. Throws c10::ValueError if there is none, or
// if one cannot be exchanged: see OuterOptimizer's constructor.
std::vector<at::Tensor> outer_parameters_of(const torch::optim::Optimizer& optimizer);

// Throws c10::ValueError if OuterOptions::quorum or grace_seconds does not fit that number of groups.
void check_quorum(const OuterOptions& options, int64_t groups);

// Returns the options that `read_options` returns, once they, the optimizer's parameters and `groups` (of
// OuterOptimizer) are valid and the same on all ranks. A collective. If reading or a check throws a c10::ValueError or
// c10::TypeError on one rank, all ranks throw it. c10::DistBackendError if a peer fails.
OuterOptions agree_on_outer_options(const torch::optim::Optimizer& inner, const ProcessGroupPtr& group,
                                    const std::function<OuterOptions()>& read_options,
                                    const std::vector<int64_t>& groups = {});

}  // namespace narrowcast
