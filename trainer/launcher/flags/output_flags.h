// The flags of narrowcast-run about the workers' output.
#pragma once

#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/launcher/job/launch.h"

namespace narrowcast::launcher {

// Returns their names.
const std::vector<std::string>& output_flags();

// Reads them. Throws like read_launch_request.
void read_output_flags(const program::CommandLine& line, LaunchRequest& wanted);

}  // namespace narrowcast::launcher
