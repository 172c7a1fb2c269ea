// c10d's Reducer, made and asked in one place because it changes between versions of LibTorch, and what it needs of the
// autograd graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/gradient_reducer.h>
#include <narrowcast/module_state.h>
#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {

// The buckets of the first step, by index into `parameters`. Gradients come in roughly the reverse order of the
// parameters, so buckets do, too. If every step uses all parameters, the first step only observes the true order, with
// one bucket per dtype; else buckets are never rebuilt and must be right at once.
BucketIndices first_buckets(const std::vector<NamedTensor>& parameters, const DdpOptions& options);

// Makes a Reducer without a hook, which begins with `buckets`, rebuilds them and finds unused parameters as `options`
// say.
std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<NamedTensor>& parameters, const ProcessGroupPtr& group,
                                            const DdpOptions& options, const BucketIndices& buckets);

// The buckets in which the caps of `options` put parameters whose gradients become ready in `order`; in the order in
// which they are full.
BucketIndices fill_buckets(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& order,
                           const DdpOptions& options);

// The Reducer's buckets by names, and such names as indices. Throws CorruptInputError naming a parameter that is in no
// bucket or in two, or a name that is no parameter's.
BucketNames bucket_names(const c10d::Reducer& reducer, const std::vector<NamedTensor>& parameters);
BucketIndices bucket_indices(const BucketNames& names, const std::vector<NamedTensor>& parameters);

// Copies of `outputs` (only of those with a gradient; others stay as they are) whose backward
//  - calls `on_backward` first, if there is one, on the thread of the backward pass;
//  - reaches all outputs: those that the loss does not use get an undefined gradient instead of none, so that the
//    Reducer hears of every parameter that they depend on.
// Copies, because views made by such a node could not be changed in place.
std::vector<at::Tensor> pass_through_sink(const std::vector<at::Tensor>& outputs,
                                          const std::function<void()>& on_backward);

}  // namespace narrowcast
