// The flags of narrowcast-train that say how a training outlives its processes.
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast {

// Their names.
const std::vector<std::string>& checkpoint_flags();

// What they say. Throws c10::ValueError for one that cannot take effect with the others.
job::CheckpointOptions read_checkpoints(const program::CommandLine& line);

}  // namespace narrowcast
