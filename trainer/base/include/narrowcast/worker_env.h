// The only reader of this process's environment: the launcher's description of the job, and the few variables that
// programs use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// The values of environment variables by name.
using EnvironmentVariables = std::map<std::string, std::string>;

// Every variable of this process's environment, e.g. to pass it on to a child.
EnvironmentVariables process_environment();

// The variable's value; empty if it is not set. An empty value counts as not set, as in most shells' scripts.
std::string text_or_empty(const EnvironmentVariables& variables, const std::string& name);

// TORCHELASTIC_ERROR_FILE, the file to which a failing worker writes its error; empty: none.
std::string worker_error_file();

// The process's place in a job as given on the command line: WorkerEnv's members of the same names. It takes precedence
// over the launcher's variables.
struct WorkerFlags {
  std::optional<int64_t> rank = {};
  std::optional<int64_t> world_size = {};
  std::optional<int64_t> local_rank = {};
  std::optional<int64_t> local_world_size = {};
  std::optional<std::string> master_addr = {};
  std::optional<int64_t> master_port = {};
};

// This process's place in a job, from the command line and from the launcher's variables. The launchers: torchrun,
// narrowcast-run, Kubernetes' training operator, Open MPI, srun, MPICH's and Intel's mpiexec, other PMI launchers, or
// RANK and WORLD_SIZE set by hand. docs/reference/launcher.md lists the variables. The defaults describe a single
// process.
struct WorkerEnv {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;          // among the processes of this node
  int64_t local_world_size = 1;    // processes of this node
  std::string master_addr;         // host of the job's store; empty for a single process
  int64_t master_port = 0;         // 1..65535; 0 for a single process
  bool use_agent_store = false;    // TORCHELASTIC_USE_AGENT_STORE: the launcher serves the store, not rank 0
  int64_t restart_count = 0;       // TORCHELASTIC_RESTART_COUNT
  bool recovers_in_place = false;  // NARROWCAST_RECOVERY=in_place: the launcher replaces a lost rank's process alone
  int64_t node = 0;              // names this node in a job whose nodes may change (NARROWCAST_NODE=node/rank_on_node);
                                 // 0: they do not change
  int64_t rank_on_node = 0;      // among the ranks of this node, if they may change
  std::string store_file;        // NARROWCAST_STORE_FILE: a file with the store's present address, "HOST:PORT" and a
                                 // line feed. Its launcher replaces it when another launcher serves the store. Empty,
                                 // or no such file: the address is master_addr and master_port
  std::string run_id;            // TORCHELASTIC_RUN_ID, the same for all processes of a job
  std::string error_file;        // TORCHELASTIC_ERROR_FILE, to which a failing worker writes its error; empty: none
  std::string socket_interface;  // GLOO_SOCKET_IFNAME, e.g. "eth0"; empty: chosen by init_process_group

  // Whether all ranks run on this node.
  bool on_one_node() const { return local_world_size == world_size; }

  // Reads this process's environment, as from_variables does.
  static WorkerEnv from_environment(const WorkerFlags& flags = {});

  // Without a launcher's variables and without flags for ranks, it is a single process. Otherwise rank and world size
  // must be set and, for more than one process, an address, a port and the local ranks. Defaults for unset ones:
  //   - With a loopback address, all ranks share a node.
  //   - Under Kubernetes, a pod is a node.
  //   - MPI launchers need no address on one node.
  //   - The port follows from Slurm's or Open MPI's job id.
  // Throws c10::ValueError naming a variable or flag that is missing, malformed, out of range or contradicts another,
  // and its value.
  static WorkerEnv from_variables(const EnvironmentVariables& variables, const WorkerFlags& flags = {});
};

// The user's session, as programs see it.
struct SessionEnv {
  bool no_color = false;             // NO_COLOR is set and not empty: print no colours (no-color.org)
  bool omp_num_threads_set = false;  // OMP_NUM_THREADS is set: the user chose the number of threads
  std::string term;                  // TERM, e.g. "xterm" or "dumb"
  std::filesystem::path cache_home;  // XDG_CACHE_HOME, else HOME/.cache; empty without both

  // Reads this process's environment.
  static SessionEnv from_environment();
  // Reads these variables alone.
  static SessionEnv from_variables(const EnvironmentVariables& variables);
};

}  // namespace narrowcast
