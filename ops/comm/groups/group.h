// Process groups: lookup by name, as PyTorch's functional collectives do it, the devices whose tensors they move, and
// small exchanges before data is sent.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ops/common/backend_errors.h"
#include "ops/common/libtorch_versions.h"

namespace narrowcast::collectives {

// The group that is registered as `name`. c10::ValueError if no such group exists.
inline c10::intrusive_ptr<c10d::ProcessGroup> find_group(std::string_view name) {
  try {
    return c10d::resolve_process_group(std::string(name));
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "group_name: no process group is registered as \"", name, "\"");
  }
}

// Whether the group has a backend for tensors on devices of that type.
inline bool moves_tensors_on(at::DeviceType type, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const auto devices = group->getDeviceTypes();
  return std::any_of(devices.begin(), devices.end(), [=](const at::Device& device) { return device.type() == type; });
}

inline bool moves_cpu_tensors(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return moves_tensors_on(at::kCPU, group);
}

// A device whose tensors the group moves: the CPU if it can, else this rank's current device of the group's first type.
inline at::Device any_device(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return moves_cpu_tensors(group) ? at::kCPU
                                  : c10::impl::VirtualGuardImpl(group->getDeviceTypes().at(0).type()).getDevice();
}

// All-gathers `row`, [n] of the same type and size on all ranks: returns [W, n] on the CPU, by rank. The row is sent on
// its own device, and the host waits for it. If a rank's message is too short, zeros remain. Throws what the backend
// throws.
inline at::Tensor all_gather_rows(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Tensor row) {
  at::Tensor received = at::zeros({group->getSize() * row.numel()}, row.options());
  libtorch::all_gather_single(group, received, row)->wait();
  return received.cpu().view({group->getSize(), row.numel()});
}

// As above, on `device`. c10::DistBackendError naming this rank and `call` if a peer or the network fails.
inline at::Tensor all_gather_rows(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& call,
                                  const at::Tensor& row, at::Device device) {
  const at::Tensor sent = row.to(device);
  return with_backend_errors(group->getRank(), call, [&] { return all_gather_rows(group, sent); });
}

// A collective: the maximum over ranks, value by value. All ranks pass the same number of values. No rank returns
// before all have called it. c10::DistBackendError naming this rank and `call` if a peer or the network fails.
inline std::vector<double> greatest_of_ranks(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                             const std::string& call, const std::vector<double>& values) {
  const at::Tensor row = at::tensor(values, at::kDouble).to(any_device(group));
  const at::Tensor most =
      with_backend_errors(group->getRank(), call, [&] { return all_gather_rows(group, row); }).amax(0);
  return {most.const_data_ptr<double>(), most.const_data_ptr<double>() + most.numel()};
}

}  // namespace narrowcast::collectives
