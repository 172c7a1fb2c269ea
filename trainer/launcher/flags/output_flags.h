// The flags of narrowcast-run that say where the workers' output goes.
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/launcher/job/launch.h"

namespace narrowcast::launcher {

// Their names.
const std::vector<std::string>& output_flags();

// Reads them. Throws as read_launch_request does.
void read_output_flags(const program::CommandLine& line, LaunchRequest& wanted);

}  // namespace narrowcast::launcher
