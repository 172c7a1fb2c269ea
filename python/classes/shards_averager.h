// What ParameterShards needs of torch.classes.narrowcast.CommHook.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <vector>

#include "trainer/ddp/sharding/shard_agreement.h"

namespace narrowcast::classes {

// A hook that can average shards for an optimizer.
class ShardsAverager : public torch::CustomClassHolder {
 public:
  // Refers to this object. Throws c10::ValueError if an optimizer cannot be sharded with the hook.
  virtual sharding::ShardingHook sharding_hook() = 0;

  // The parameters in each bucket of the last backward pass, in the order of their gradients there. Empty before one,
  // and once one of the parameters is destroyed.
  virtual std::vector<std::vector<at::Tensor>> last_buckets() const = 0;
};

}  // namespace narrowcast::classes
