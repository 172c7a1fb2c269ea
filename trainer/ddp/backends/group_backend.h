// Parts of a process group that all backends share. Each backend has a header and a source file; for a backend that the
// build lacks, a stub file throws the error.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>

namespace narrowcast {

// Names of the backends of ProcessGroupOptions. Gloo moves tensors on the CPU, NCCL also tensors on GPUs.
inline constexpr const char* kGlooBackend = "gloo";
inline constexpr const char* kNcclBackend = "nccl";

inline bool is_known_backend(const std::string& name) { return name == kGlooBackend || name == kNcclBackend; }

// A backend for ProcessGroup::setBackend.
struct GroupBackend {
  c10::DeviceType device;  // of the tensors it moves
  c10d::ProcessGroup::BackendType type;
  c10::intrusive_ptr<c10d::Backend> backend;
};

// Returns the group. Throws c10::ValueError for a null group and for a group without a backend.
inline ProcessGroupPtr checked_group(ProcessGroupPtr group) {
  TORCH_CHECK_VALUE(group.defined(), "process_group must not be null; create one with init_process_group");
  TORCH_CHECK_VALUE(group->hasBackends(), "process_group has no backend; create one with init_process_group");
  return group;
}

// The network interface that the group uses, see ProcessGroupOptions::interface; empty: the backend chooses.
inline std::string socket_interface(const WorkerEnv& env, const ProcessGroupOptions& options) {
  return options.interface.empty() ? env.socket_interface : options.interface;
}

}  // namespace narrowcast
