// What init_process_group needs of a backend. Each backend is a file; one that a build lacks is a file, too, whose
// function says so.
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

// The backends of ProcessGroupOptions by their names: for tensors on the CPU, and for those on GPUs, too.
inline constexpr const char* kGlooBackend = "gloo";
inline constexpr const char* kNcclBackend = "nccl";

inline bool is_known_backend(const std::string& name) { return name == kGlooBackend || name == kNcclBackend; }

// A backend for ProcessGroup::setBackend.
struct GroupBackend {
  c10::DeviceType device;  // of the tensors it moves
  c10d::ProcessGroup::BackendType type;
  c10::intrusive_ptr<c10d::Backend> backend;
};

// The group itself. c10::ValueError for null, and for one that has no backend.
ProcessGroupPtr checked_group(ProcessGroupPtr group);

// The network interface that the group uses, as ProcessGroupOptions::interface says; empty: the backend's own choice.
std::string socket_interface(const WorkerEnv& env, const ProcessGroupOptions& options);

// Whether Gloo can be used as the environment asks for it. Throws as init_process_group says.
void check_gloo_backend();

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

// NCCL, and LibTorch's use of it, take some things from the environment and from nowhere else; nccl_environment.cpp has
// these functions.
namespace narrowcast::nccl {

// The place of a rank, as NCCL sees it.
struct Place {
  int64_t rank = 0;
  std::string interface = {};          // through which NCCL is to connect; empty: its own choice
  std::vector<std::string> gpus = {};  // by rank: texts that are equal where ranks use the same GPU
};

// The variables for that rank, by name. What the user set wins over them.
//   NCCL_SOCKET_IFNAME: the interface.
//   NCCL_HOSTID, NCCL_NET: where ranks share a GPU. NCCL refuses two ranks on one GPU of one host, so each gives itself
//     for a host of its own, and all connect by sockets.
//   TORCH_NCCL_DUMP_ON_TIMEOUT: no dumps. The mark that asks all ranks for them stays in the job's store, and would end
//     the ranks of the next start.
//   TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC: LibTorch breaks a collective that failed off after four times as long. Long
//     enough to learn before it which rank was lost; by itself LibTorch waits for a minute.
//   TORCH_NCCL_ASYNC_ERROR_HANDLING: that is all it does. By itself it ends the process by SIGABRT.
EnvironmentVariables environment_for(const Place& place);

// c10::ValueError if `given`, this process's variables, ask LibTorch to end the process when a collective fails, or to
// do nothing about it: then no error could be told. What torchrun gives every worker counts as not set.
void check_error_handling(const EnvironmentVariables& given);

// A GPU as CUDA describes it.
struct Gpu {
  int64_t number = 0;
  std::string name;
  int major = 0;  // of its compute capability
  int minor = 0;
};

// The kernels of this project need compute capability 8.0: c10::ValueError naming the GPU if it has less.
void check_capability(const Gpu& gpu);

// Sets those of the variables that this process's environment lacks, before NCCL's first use, and the one that
// check_error_handling is about.
void set_where_missing(const EnvironmentVariables& variables);

}  // namespace narrowcast::nccl
