// The process's place in the job, from the command line and the environment, and checks that several programs share.
#pragma once

#include <string>

#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "trainer/base/program/command_line.h"
#include "trainer/train/options/worker_options.h"

namespace narrowcast {

// The process's place, from its environment and the command line. The command line takes precedence. Throws as
// WorkerEnv::from_variables does, and c10::ValueError for an interface if the process is the only one.
WorkerEnv read_worker_env(const options::WorkerPlace& place);

// Throws c10::ValueError if the heartbeat timeout (--silence_seconds) is too short for ranks to send a heartbeat, or if
// it is given and longer than the time-out, so that it has no effect.
void check_patience(const program::CommandLine& line, const ProcessGroupOptions& group);

// Throws c10::ValueError naming the flag if it was given, but its `value`, a file name, is empty.
void check_file(const program::CommandLine& line, const std::string& flag, const std::string& value);

}  // namespace narrowcast
