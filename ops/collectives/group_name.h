// Process groups: by name, as PyTorch's functional collectives know them, and what they move.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>

namespace narrowcast::collectives {

// The group registered under that name. c10::ValueError if there is none.
c10::intrusive_ptr<c10d::ProcessGroup> find_group(std::string_view name);

bool moves_cpu_tensors(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// A device whose tensors the group moves: the CPU if it can, else this rank's current one of the group's first kind.
NARROWCAST_EXPORT at::Device any_device(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace narrowcast::collectives
