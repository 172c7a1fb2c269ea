// The command line of narrowcast-train, but for --evaluate (evaluate_flags.h).
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast {

// What --help and --version say. docs/training.md explains the flags at length.
program::Description train_description();

// The training or verification that the command line asks for. Throws c10::ValueError for a flag that cannot take
// effect with the others; values are checked where they are used.
job::TrainJob read_train_job(const program::CommandLine& line);

// Throws c10::ValueError "--FLAG: has no effect REASON" if one of `flags` was given.
void refuse(const program::CommandLine& line, const std::vector<std::string>& flags, const std::string& reason);

}  // namespace narrowcast
