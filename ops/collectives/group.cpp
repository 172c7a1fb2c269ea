#include "ops/collectives/group.h"

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "ops/backend_errors.h"

namespace narrowcast::collectives {

c10::intrusive_ptr<c10d::ProcessGroup> find_group(std::string_view name) {
  try {
    return c10d::resolve_process_group(std::string(name));
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "group_name: no process group is registered as \"", name, "\"");
  }
}

at::Tensor all_gather_rows(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& call,
                           const at::Tensor& row, at::Device device) {
  const at::Tensor sent = row.to(device);
  return with_backend_errors(group->getRank(), call, [&] { return all_gather_rows(group, sent); });
}

}  // namespace narrowcast::collectives
