// Built only with CUDA.
#include <c10/core/DeviceType.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "ops/collectives/all_reduce/stream/stream_groups.h"
#include "ops/comm/groups/group.h"

namespace narrowcast::collectives::gpu {

using c10d::ProcessGroup;
using c10d::ProcessGroupNCCL;

// ProcessGroupNCCL::split is not used: it finds its parent's ranks only if the parent is the process's first group, and
// it requires that the parent's communicator is idle.
MakeGroup group_maker(const c10::intrusive_ptr<ProcessGroup>& group) {
  if (!moves_tensors_on(at::kCUDA, group)) {
    return nullptr;
  }
  const auto parent = c10::dynamic_intrusive_pointer_cast<ProcessGroupNCCL>(group->getBackend(at::kCUDA));
  if (parent == nullptr) {
    return nullptr;
  }
  return [parent](const c10::intrusive_ptr<c10d::Store>& store, int place, int size) {
    auto options = ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = parent->getOptions()->timeout;
    auto backend = c10::make_intrusive<ProcessGroupNCCL>(store, place, size, std::move(options));
    auto made = c10::make_intrusive<ProcessGroup>(store, place, size);
    made->setBoundDeviceId(parent->getBoundDeviceId());  // The backend reads it.
    made->setBackend(at::kCUDA, ProcessGroup::BackendType::NCCL, std::move(backend));
    made->setDefaultBackend(ProcessGroup::BackendType::NCCL);
    return made;
  };
}

}  // namespace narrowcast::collectives::gpu
