// The flags of narrowcast-train that say how a training outlives its processes.
#pragma once

#include <string>
#include <vector>

#include "trainer/job/train_job.h"
#include "trainer/program/command_line.h"

namespace narrowcast {

// Their names.
const std::vector<std::string>& checkpoint_flags();

// What they say. Throws c10::ValueError for one that cannot take effect with the others.
job::CheckpointOptions read_checkpoints(const program::CommandLine& line);

}  // namespace narrowcast
