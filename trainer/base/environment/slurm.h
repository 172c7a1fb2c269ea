// The variables that srun sets for a task, and how Slurm writes lists of hosts and of numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/base/environment/launchers.h"

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
