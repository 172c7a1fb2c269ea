// The command line of narrowcast-train.
#pragma once

#include "trainer/job/train_job.h"
#include "trainer/program/command_line.h"

namespace narrowcast {

// What --help and --version say. docs/training.md explains the flags at length.
program::Description train_description();

// What the command line asks for. Throws c10::ValueError for a flag that cannot take effect with the others;
// values are checked where they are used.
job::TrainJob read_train_job(const program::CommandLine& line);

}  // namespace narrowcast
