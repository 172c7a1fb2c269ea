// The NCCL backend, which moves CUDA tensors. In a build without CUDA, no_nccl_backend.cpp implements these functions.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "trainer/ddp/backends/group_backend.h"

namespace narrowcast {

// Checks that this process can use NCCL at all. Throws as init_process_group does.
void check_nccl_backend(const WorkerEnv& env, const ProcessGroupOptions& options);

// A collective of `group`, in which the ranks exchange which GPUs they use (options.gpu). NCCL connects at its first
// collective.
GroupBackend create_nccl_backend(const ProcessGroupPtr& group, const c10::intrusive_ptr<c10d::Store>& store,
                                 const WorkerEnv& env, const ProcessGroupOptions& options);

}  // namespace narrowcast
