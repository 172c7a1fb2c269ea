// A process group for tests: Gloo for CPU tensors over 127.0.0.1.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tests/support/patience.h"

namespace narrowcast::testing {

struct GlooGroupOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::chrono::milliseconds timeout = kPatience;  // For joining, and for every collective and message.
};

// Blocks until all ranks have joined through `store`. The group has a name, but is not registered under it: the
// registry is one per process and could not hold a group per thread.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const GlooGroupOptions& options);

}  // namespace narrowcast::testing
