// The command line of narrowcast-run: launch_flags.cpp, and its flags about nodes in node_flags.cpp.
#pragma once

#include "trainer/base/program/command_line.h"
#include "trainer/launcher/job/launch.h"

namespace narrowcast::launcher {

// The text of --help and --version. docs/reference/launcher.md explains the flags in detail.
program::Description launch_description();

// Reads the command line into a request. Throws c10::ValueError for a flag that cannot take effect, alone or with the
// others, and for a wrong value of a flag about nodes. Other values are checked where they are used.
LaunchRequest read_launch_request(const program::CommandLine& line);

}  // namespace narrowcast::launcher
