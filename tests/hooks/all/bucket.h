// Buckets without a Reducer.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>
#include <vector>

namespace narrowcast::hooks {

// Bucket number `index` of `count`; its buffer is `buffer` itself.
inline c10d::GradBucket make_bucket(at::Tensor buffer, size_t index = 0, size_t count = 1) {
  return c10d::GradBucket(index, count, std::move(buffer), {}, {}, {}, {}, std::nullopt);
}

}  // namespace narrowcast::hooks
