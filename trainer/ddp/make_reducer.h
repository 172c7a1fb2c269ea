// c10d's Reducer, made and asked in one place: both change between versions of LibTorch.
#pragma once

#include <cstddef>
#include <memory>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/module_state.h>
#include <narrowcast/reducer_state.h>

namespace narrowcast {

// Buckets as the Reducer takes them: indices into the list of parameters.
using BucketIndices = std::vector<std::vector<size_t>>;

std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<NamedTensor>& parameters, const ProcessGroupPtr& group,
                                            const DdpOptions& options);

// A collective, which changes the buckets once: see GradientReducer::before_forward. True if they changed. Throws
// c10::ValueError if the last backward pass left gradients out.
bool rebuild_buckets(c10d::Reducer& reducer);

// The Reducer's buckets by names, and such names as indices. Throws CorruptInputError naming a parameter that is in no
// bucket or in two, or a name that is no parameter's.
BucketNames bucket_names(const c10d::Reducer& reducer, const std::vector<NamedTensor>& parameters);
BucketIndices bucket_indices(const BucketNames& names, const std::vector<NamedTensor>& parameters);

}  // namespace narrowcast
