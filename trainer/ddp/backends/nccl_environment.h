// NCCL, and LibTorch's use of it, read some settings only from the environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>

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
