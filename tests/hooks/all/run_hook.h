// One step of one hook on one bucket.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include "tests/hooks/all/bucket.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {

// The hook's result for the bucket.
inline at::Tensor run_on(CommHook& hook, c10d::GradBucket bucket) {
  const auto future = hook.runHook(bucket);
  future->waitAndThrow();
  return hook.parseHookResult(future->value());
}

// The result of each rank if rank r's bucket is a copy of buckets[r].
inline std::vector<at::Tensor> run_hook(const std::string& name, const std::vector<at::Tensor>& buckets,
                                        std::optional<int64_t> channel_size = std::nullopt) {
  std::vector<at::Tensor> results(buckets.size());
  testing::run_ranks(static_cast<int64_t>(buckets.size()),
                     [&](int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
                       const auto hook = create_comm_hook(name, {.process_group = group, .channel_size = channel_size});
                       results[rank] = run_on(*hook, make_bucket(buckets[rank].clone()));
                     });
  return results;
}

}  // namespace narrowcast::hooks
