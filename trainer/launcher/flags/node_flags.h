// The flags of narrowcast-run that say which nodes take part, and who else may not.
#pragma once

#include "trainer/base/program/command_line.h"
#include "trainer/launcher/job/launch.h"

namespace narrowcast::launcher {

// Reads the group of nodes, the job's secret and whether it gets a network of its own. Throws as read_launch_request
// does.
void read_node_flags(const program::CommandLine& line, LaunchRequest& wanted);

}  // namespace narrowcast::launcher
