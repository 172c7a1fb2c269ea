#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace narrowcast::hooks {

// What every hook is made from.
struct HookOptions {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;  // Whose ranks average their gradients.
};

}  // namespace narrowcast::hooks
