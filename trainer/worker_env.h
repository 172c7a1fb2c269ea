// The environment of this process, read in one place: what a launcher says
// about the job, and the few variables that programs look at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "ops/export.h"

namespace narrowcast {

using EnvironmentVariables = std::map<std::string, std::string>;

// Every variable of this process's environment, e.g. to pass it on to a child.
NARROWCAST_EXPORT EnvironmentVariables process_environment();

// This process's place in a job, in the variables that torchrun and
// narrowcast-run set. The defaults are one process alone.
struct NARROWCAST_EXPORT WorkerEnv {
  int64_t rank = 0;              // RANK
  int64_t world_size = 1;        // WORLD_SIZE
  int64_t local_rank = 0;        // LOCAL_RANK, among the processes of this node
  int64_t local_world_size = 1;  // LOCAL_WORLD_SIZE
  std::string master_addr;       // MASTER_ADDR, where the job's store is; empty for one process alone
  int64_t master_port = 0;       // MASTER_PORT, 1..65535; 0 for one process alone
  bool use_agent_store = false;  // TORCHELASTIC_USE_AGENT_STORE: the launcher serves the store, not rank 0
  int64_t restart_count = 0;     // TORCHELASTIC_RESTART_COUNT
  std::string run_id;            // TORCHELASTIC_RUN_ID, the same for all processes of a job
  std::string error_file;        // TORCHELASTIC_ERROR_FILE, where a failing worker says why; empty: nowhere
  std::string socket_interface;  // GLOO_SOCKET_IFNAME, e.g. "eth0"; empty: chosen by init_process_group

  // All ranks run on this node.
  bool on_one_node() const { return local_world_size == world_size; }

  // From this process's environment. See from_variables.
  static WorkerEnv from_environment();

  // Without any of RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE: one
  // process alone. With any of them RANK and WORLD_SIZE are needed and, for
  // more than one process, MASTER_ADDR and MASTER_PORT; LOCAL_RANK and
  // LOCAL_WORLD_SIZE too, unless MASTER_ADDR is a loopback address, which says
  // that all ranks share a node. Throws c10::ValueError naming a variable that
  // is missing, malformed, out of range or contradicts another, and its value.
  static WorkerEnv from_variables(const EnvironmentVariables& variables);
};

// What the user's session says to programs.
struct NARROWCAST_EXPORT SessionEnv {
  bool no_color = false;             // NO_COLOR is set and not empty: print no colours (no-color.org)
  bool omp_num_threads_set = false;  // OMP_NUM_THREADS is set: the user chose the number of threads
  std::string term;                  // TERM, e.g. "xterm" or "dumb"
  std::filesystem::path cache_home;  // XDG_CACHE_HOME, else HOME/.cache; empty without both

  static SessionEnv from_environment();
  static SessionEnv from_variables(const EnvironmentVariables& variables);
};

}  // namespace narrowcast
