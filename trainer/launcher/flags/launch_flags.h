// The command line of narrowcast-run: launch_flags.cpp, and its flags about nodes in node_flags.cpp.
#pragma once

#include "trainer/base/program/command_line.h"
#include "trainer/launcher/job/launch.h"

namespace narrowcast::launcher {

// What --help and --version say. docs/launcher.md explains the flags at length.
program::Description launch_description();

// The job that the command line asks for. Throws c10::ValueError for a flag that cannot take effect, alone or with the
// others, and for a wrong value of one that says which nodes take part; other values are checked where they are used.
LaunchRequest read_launch_request(const program::CommandLine& line);

}  // namespace narrowcast::launcher
