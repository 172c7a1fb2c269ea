// Creates and queries c10d's Reducer, whose interface changes between versions of LibTorch, and prepares the autograd
// graph for it.
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

// The buckets of the first step, by index into `parameters`. Gradients become ready in roughly the reverse order of the
// parameters, so buckets are in reverse order as well. Their size:
//   - If every step uses all parameters, the first step only observes the true order. Its buckets close at the cap of
//     the later ones, or at kMeasuredBucketMb if that is larger.
//   - Otherwise buckets are never rebuilt, and have both caps of `options`.
BucketIndices first_buckets(const std::vector<NamedTensor>& parameters, const DdpOptions& options);

// Creates a Reducer without a hook, which begins with `buckets`. `options` determine whether it rebuilds them and finds
// unused parameters.
std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<NamedTensor>& parameters, const ProcessGroupPtr& group,
                                            const DdpOptions& options, const BucketIndices& buckets);

// The buckets that the caps of `options` give for parameters whose gradients become ready in `order`. Buckets are in
// the order in which they become full.
BucketIndices fill_buckets(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& order,
                           const DdpOptions& options);

// The parameters in each of the Reducer's buckets, in their order there.
std::vector<std::vector<at::Tensor>> bucket_parameters(const c10d::Reducer& reducer);

// Converts the Reducer's buckets to names, and such names to indices. Throws CorruptInputError naming a parameter that
// is in no bucket or in two, or an unknown name.
BucketNames bucket_names(const c10d::Reducer& reducer, const std::vector<NamedTensor>& parameters);
BucketIndices bucket_indices(const BucketNames& names, const std::vector<NamedTensor>& parameters);

// Throws c10::ValueError if an output is a loss that its backward pass computes (Model::compute_loss_in_backward), or a
// multiple of such a loss: neither unused parameters nor a static graph can be found behind it.
void check_contains_parameters(const std::vector<at::Tensor>& outputs);

// Copies `outputs` that have a gradient function; other outputs are returned unchanged. The backward of the copies
//   - calls `on_backward` first, if it is given, on the thread of the backward pass;
//   - reaches all outputs: outputs that the loss does not use get an undefined gradient instead of none, so that the
//     Reducer is notified of every parameter that they depend on.
// They are copies because views made by such a node could not be changed in place.
std::vector<at::Tensor> pass_through_sink(const std::vector<at::Tensor>& outputs,
                                          const std::function<void()>& on_backward);

}  // namespace narrowcast
