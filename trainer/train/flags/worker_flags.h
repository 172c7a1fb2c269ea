// The flags with which a worker is told its place in the job, of every program that runs as one.
#pragma once

#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/base/program/command_line.h"

namespace narrowcast {

// Returns their names.
const std::vector<std::string>& worker_flags();

// The process's place, from its environment and from those flags, which win. Throws as WorkerEnv::from_variables does,
// and c10::ValueError for an interface where there is nobody to talk to.
WorkerEnv read_worker_env(const program::CommandLine& line);

}  // namespace narrowcast
