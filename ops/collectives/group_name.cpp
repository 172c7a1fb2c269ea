#include "ops/collectives/group_name.h"

#include <c10/util/Exception.h>

#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

namespace narrowcast::collectives {

c10::intrusive_ptr<c10d::ProcessGroup> find_group(std::string_view name) {
  try {
    return c10d::resolve_process_group(std::string(name));
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "group_name: no process group is registered as \"", name, "\"");
  }
}

}  // namespace narrowcast::collectives
