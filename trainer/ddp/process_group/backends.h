// What init_process_group needs of a backend. Each backend is a file; one that a
// build lacks is a file, too, whose function says so.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>

namespace narrowcast {

struct GroupBackend {
  c10::DeviceType device;  // of the tensors it moves
  c10d::ProcessGroup::BackendType type;
  c10::intrusive_ptr<c10d::Backend> backend;
};

// Connects this rank to all others. Throws as init_process_group says.
GroupBackend create_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, const WorkerEnv& env,
                                 const ProcessGroupOptions& options);

// Whether this process can use NCCL at all. Throws as init_process_group says.
void check_nccl_backend(const WorkerEnv& env, const ProcessGroupOptions& options);

// A collective of `group`, in which the ranks tell each other which GPUs they use: options.gpu. NCCL connects at the
// first collective of its own.
GroupBackend create_nccl_backend(const ProcessGroupPtr& group, const c10::intrusive_ptr<c10d::Store>& store,
                                 const WorkerEnv& env, const ProcessGroupOptions& options);

}  // namespace narrowcast
