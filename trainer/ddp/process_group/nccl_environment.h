// What NCCL, and LibTorch's use of it, take from the environment and from nowhere else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>

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
//   TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC: a rank ends after four times as long when a collective failed. Long enough for
//     a launcher to see before it which rank was lost; by itself LibTorch waits for a minute.
EnvironmentVariables environment_for(const Place& place);

// Sets those of the variables that this process's environment lacks, before NCCL's first use.
void set_where_missing(const EnvironmentVariables& variables);

}  // namespace narrowcast::nccl
