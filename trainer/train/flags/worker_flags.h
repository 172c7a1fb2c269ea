// The place in the job that a command line and the environment say, and what command lines of several programs have in
// common.
#pragma once

#include <string>

#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "trainer/base/program/command_line.h"
#include "trainer/train/options/worker_options.h"

namespace narrowcast {

// The process's place, from its environment and from the command line, which wins. Throws as WorkerEnv::from_variables
// does, and c10::ValueError for an interface where there is nobody to talk to.
WorkerEnv read_worker_env(const options::WorkerPlace& place);

// Throws c10::ValueError for a silence (--silence_seconds) that is too short for ranks to give a sign, or that is given
// and longer than the time-out, so that it has no effect.
void check_patience(const program::CommandLine& line, const ProcessGroupOptions& group);

// Throws c10::ValueError naming the flag of a file that is given without a name.
void check_file(const program::CommandLine& line, const std::string& flag, const std::string& value);

}  // namespace narrowcast
