// Process groups by name, as PyTorch's functional collectives know them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace narrowcast::collectives {

// The group registered under that name. c10::ValueError if there is none.
c10::intrusive_ptr<c10d::ProcessGroup> find_group(std::string_view name);

}  // namespace narrowcast::collectives
