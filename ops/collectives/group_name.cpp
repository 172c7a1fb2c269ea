#include "ops/collectives/group_name.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
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

bool moves_cpu_tensors(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const auto devices = group->getDeviceTypes();
  return std::any_of(devices.begin(), devices.end(), [](const at::Device& device) { return device.is_cpu(); });
}

at::Device any_device(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return moves_cpu_tensors(group) ? at::kCPU
                                  : c10::impl::VirtualGuardImpl(group->getDeviceTypes().at(0).type()).getDevice();
}

}  // namespace narrowcast::collectives
