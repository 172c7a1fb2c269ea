// The flags of narrowcast-run that say which nodes a job has and how they meet.
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/launcher/job_rendezvous.h"

namespace narrowcast {

// Their names.
const std::vector<std::string>& group_flags();

// What they say. Throws c10::ValueError for a flag that cannot take effect with the others, and for a value that is
// none.
launcher::GroupRequest read_group_request(const program::CommandLine& line);

}  // namespace narrowcast
