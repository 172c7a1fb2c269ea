// Buckets that name their parameters, like the Reducer's.
#pragma once

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

namespace narrowcast::hooks {

// Makes a bucket of `parameters` in this order, with copies of `gradients`.
inline c10d::GradBucket make_parameters_bucket(const std::vector<at::Tensor>& parameters,
                                               const std::vector<at::Tensor>& gradients, size_t index = 0,
                                               size_t count = 1) {
  std::vector<size_t> offsets;
  std::vector<size_t> lengths;
  std::vector<c10::IntArrayRef> sizes;
  std::vector<at::Tensor> flat;
  size_t offset = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    offsets.push_back(offset);
    lengths.push_back(parameters[i].numel());
    sizes.push_back(parameters[i].sizes());
    flat.push_back(gradients[i].reshape({-1}));
    offset += lengths.back();
  }
  return c10d::GradBucket(index, count, at::cat(flat), offsets, lengths, sizes, parameters, std::nullopt);
}

}  // namespace narrowcast::hooks
