#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "hooks/wire_options.h"

namespace narrowcast::hooks {

// What every hook is made from.
struct HookOptions {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;  // Whose ranks average their gradients.
  WireOptions wire = {};                                 // c10::ValueError with hooks that are not of that kind.
};

}  // namespace narrowcast::hooks
