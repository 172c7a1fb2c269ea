// What each launcher tells its workers, brought into one form.
#pragma once

#include <optional>
#include <string>

#include "trainer/base/setting.h"

namespace narrowcast {

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
