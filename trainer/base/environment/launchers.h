// Brings the variables that each launcher sets for its workers into one form: launchers.cpp, and slurm.cpp for Slurm.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>

namespace narrowcast {

// A value of the environment or the command line, with its source for error messages.
struct Setting {
  std::string name;  // "RANK", or "--rank"
  std::string text;

  // For errors: "RANK=3".
  std::string described() const { return name + "=" + text; }
};

// The variable, unless it is not set. An empty value counts as not set, as in most shells' scripts.
std::optional<Setting> find_variable(const EnvironmentVariables& variables, const std::string& name);

// An integer's range, both ends included.
struct Range {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int32_t>::max();
};

// Throws c10::ValueError naming the setting and its value if it is not an integer or is out of range.
int64_t parse_integer(const Setting& setting, Range range);

// A process's place in a job, before it is checked. A value that the launcher does not set is absent; then `missing`
// names the variable that a user can set.
struct Place {
  struct Value {
    std::optional<Setting> setting;
    std::string missing;
    std::optional<Setting> other = {};  // RANK's family of variables, set beside the launcher's own
  };

  std::string launcher;  // for people, e.g. "srun"; empty: no sign of a job
  Value rank;
  Value world_size;
  Value local_rank;
  Value local_world_size;
  Value master_addr;
  Value master_port;
};

// The place of this process according to the innermost launcher whose variables are set. The order: torchrun (and
// narrowcast-run), Open MPI, MPICH's and Intel's mpiexec, srun, other PMI launchers, then RANK and WORLD_SIZE alone.
// MASTER_ADDR and MASTER_PORT apply under each of them. Throws c10::ValueError if a list of Slurm's is malformed.
Place find_place(const EnvironmentVariables& variables);

// The port at which rank 0 serves if none is set: 15000 + FNV-1a(job) mod 15000, with the 64-bit hash. It is the same
// for all ranks that pass the same `job`, which the launcher gave them, and probably differs for another job.
int64_t port_of_job(const std::string& job);

}  // namespace narrowcast

// The variables that srun sets for a task, and how Slurm writes lists of hosts and of numbers.
namespace narrowcast::slurm {

// "a[01-03,7],b" -> {"a01", "a02", "a03", "a7", "b"}.
// Brackets may stand anywhere in a name, also several times. Throws c10::ValueError with the error in `list`, also if
// it has more than 65536 hosts.
std::vector<std::string> expand_host_list(const std::string& list);

// "2(x3),1" -> {2, 2, 2, 1}. Throws c10::ValueError as above.
std::vector<int64_t> expand_counts(const std::string& list);

// The place of a task of a job step. The address is the name of the step's first node; the port is derived from job and
// step. Throws c10::ValueError naming a variable that is malformed or contradicts another one.
Place place_in_step(const EnvironmentVariables& variables);

}  // namespace narrowcast::slurm
