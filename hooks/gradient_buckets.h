// Buckets of gradients without a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include <narrowcast/comm_hook.h>

namespace narrowcast::hooks {

// The buckets of one step, as a Reducer would hand them out: each holds one parameter with two dimensions, and all hold
// the same gradients.
class GradientBuckets {
 public:
  // `count` buckets of `numel` float32 elements, not filled yet. The gradients are normal numbers of mean 0 and
  // standard deviation 0.001, drawn with `seed`, which ranks choose each their own.
  GradientBuckets(int64_t numel, int64_t count, uint64_t seed);

  // What each bucket is filled with, float32 [numel].
  const at::Tensor& gradients() const { return gradients_; }

  // What bucket i holds at present, float32 [numel].
  const at::Tensor& buffer(size_t i) const { return buffers_[i]; }

  // Puts the gradients into all buckets.
  void fill() const;

  // Hands out all buckets to the hook, waits for all results and, as the Reducer does, copies those that are not the
  // bucket itself into it. Throws what the hook throws.
  void average(CommHook& hook) const;

 private:
  c10d::GradBucket bucket(size_t i) const;

  at::Tensor gradients_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace narrowcast::hooks
