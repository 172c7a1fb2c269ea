// Brings the variables that each launcher sets for its workers into one form. slurm.h has Slurm's.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

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
