// What each launcher tells its workers, brought into one form: launchers.cpp, and slurm.cpp for Slurm.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>

namespace narrowcast {

// A value of the environment or the command line that remembers where it is from, so that errors can say so.
struct Setting {
  std::string name;  // "RANK", or "--rank"
  std::string text;

  // For errors: "RANK=3".
  std::string described() const { return name + "=" + text; }
};

// The variable, unless it is not set. One that is set to nothing counts as not set, as in most shells' scripts.
std::optional<Setting> find_variable(const EnvironmentVariables& variables, const std::string& name);

// What an integer must lie in, both ends included.
struct Range {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int32_t>::max();
};

// Throws c10::ValueError naming the setting and its value if it is no integer or out of range.
int64_t parse_integer(const Setting& setting, Range range);

// What is known of a process's place in a job before it is checked. What a launcher does not tell is absent; then the
// `missing` name is what a user can set.
struct Place {
  struct Value {
    std::optional<Setting> setting;
    std::string missing;
    std::optional<Setting> other = {};  // what RANK's family of variables says beside the launcher's own
  };

  std::string launcher;  // for people, e.g. "srun"; empty: nothing says that there is a job
  Value rank;
  Value world_size;
  Value local_rank;
  Value local_world_size;
  Value master_addr;
  Value master_port;
};

// The place of this process according to the innermost launcher whose variables are there. The order: torchrun (and
// narrowcast-run), Open MPI, MPICH's and Intel's mpiexec, srun, other PMI launchers, then RANK and WORLD_SIZE alone.
// MASTER_ADDR and MASTER_PORT count under each of them. Throws c10::ValueError for a list of Slurm's that is malformed.
Place find_place(const EnvironmentVariables& variables);

// Where rank 0 serves if nobody says it: the same for all ranks that pass the same `job`, which the launcher gave them,
// and probably another one for another job. 15000 + FNV-1a(job) mod 15000, with the 64-bit hash.
int64_t port_of_job(const std::string& job);

}  // namespace narrowcast

// What srun tells a task, and how Slurm writes lists of hosts and of numbers.
namespace narrowcast::slurm {

// "a[01-03,7],b" -> {"a01", "a02", "a03", "a7", "b"}; brackets may stand anywhere in a name, also several times. Throws
// c10::ValueError saying what is wrong with `list`, also if it has more than 65536 hosts.
std::vector<std::string> expand_host_list(const std::string& list);

// "2(x3),1" -> {2, 2, 2, 1}. Throws c10::ValueError as above.
std::vector<int64_t> expand_counts(const std::string& list);

// The place of a task of a job step. The address is that of the step's first node, the port is derived from job and
// step. Throws c10::ValueError naming a variable that is malformed or contradicts another one.
Place place_in_step(const EnvironmentVariables& variables);

}  // namespace narrowcast::slurm
