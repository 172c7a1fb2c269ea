// The flags of narrowcast-run that select the nodes of a job and protect it from others.
#pragma once

#include "trainer/base/program/command_line.h"
#include "trainer/launcher/job/launch.h"

namespace narrowcast::launcher {

// Reads the group of nodes, the job's secret and the kind of network. Throws like read_launch_request.
void read_node_flags(const program::CommandLine& line, LaunchRequest& wanted);

}  // namespace narrowcast::launcher
