// What srun tells a task.
#pragma once

#include "trainer/base/launchers.h"

namespace narrowcast::slurm {

// The place of a task of a job step. The address is that of the step's first node, the port is derived from job and
// step. Throws c10::ValueError naming a variable that is malformed or contradicts another one.
Place place_in_step(const EnvironmentVariables& variables);

}  // namespace narrowcast::slurm
