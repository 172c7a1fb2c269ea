// Interface of a backend for init_process_group. Each backend has a source file; for a backend that the build lacks, a
// stub file throws the error.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

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
ProcessGroupPtr checked_group(ProcessGroupPtr group);

// The network interface that the group uses, see ProcessGroupOptions::interface; empty: the backend chooses.
std::string socket_interface(const WorkerEnv& env, const ProcessGroupOptions& options);

// Checks that Gloo works with the environment variables of this process. Throws as init_process_group does.
void check_gloo_backend();

// Connects this rank to all others. Throws as init_process_group does.
GroupBackend create_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, const WorkerEnv& env,
                                 const ProcessGroupOptions& options);

// Checks that this process can use NCCL at all. Throws as init_process_group does.
void check_nccl_backend(const WorkerEnv& env, const ProcessGroupOptions& options);

// A collective of `group`, in which the ranks exchange which GPUs they use (options.gpu). NCCL connects at its first
// collective.
GroupBackend create_nccl_backend(const ProcessGroupPtr& group, const c10::intrusive_ptr<c10d::Store>& store,
                                 const WorkerEnv& env, const ProcessGroupOptions& options);

// Ends all connections of Gloo's `backend`: each wait for another rank then ends with an error. Thread-safe. Throws
// nothing.
void close_gloo_connections(c10d::Backend& backend);

}  // namespace narrowcast

// NCCL, and LibTorch's use of it, read some settings only from the environment. These functions are in
// nccl_environment.cpp.
namespace narrowcast::nccl {

// Settings of NCCL for one rank.
struct Place {
  int64_t rank = 0;
  std::string interface = {};          // that NCCL uses to connect; empty: NCCL chooses
  std::vector<std::string> gpus = {};  // by rank: names that are equal if ranks use the same GPU
};

// The variables for that rank, by name. Values that the user has set take precedence.
//   - NCCL_SOCKET_IFNAME: the interface.
//   - NCCL_HOSTID, NCCL_NET: set if ranks share a GPU. NCCL refuses two ranks on one GPU of one host, so each rank
//     pretends to be a separate host, and all connect by sockets.
//   - TORCH_NCCL_DUMP_ON_TIMEOUT: off. The flag that asks all ranks for dumps stays in the job's store, and would end
//     the ranks of the next start.
//   - TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC: LibTorch aborts a failed collective after four times this time. That is long
//     enough to learn first which rank was lost; LibTorch's default is a minute.
//   - TORCH_NCCL_ASYNC_ERROR_HANDLING: LibTorch only aborts the collective. By default it ends the process by SIGABRT.
EnvironmentVariables environment_for(const Place& place);

// Throws c10::ValueError if `given`, this process's variables, make LibTorch end the process or do nothing when a
// collective fails: no error could be reported then. The value that torchrun sets for every worker counts as not set.
void check_error_handling(const EnvironmentVariables& given);

// A GPU as CUDA describes it.
struct Gpu {
  int64_t number = 0;
  std::string name;
  int major = 0;  // of its compute capability
  int minor = 0;
};

// Throws c10::ValueError naming the GPU if its compute capability is below 8.0, which the kernels of this project need.
void check_capability(const Gpu& gpu);

// Sets those variables that this process's environment lacks, before NCCL is used first. Always sets the variable that
// check_error_handling checks.
void set_where_missing(const EnvironmentVariables& variables);

}  // namespace narrowcast::nccl
