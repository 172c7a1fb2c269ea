// The command line of narrowcast-run. docs/launcher.md explains the flags at length.
#pragma once

#include "trainer/base/program/command_line.h"
#include "trainer/launcher/launch.h"

namespace narrowcast {

// What --help and --version say.
program::Description run_description();

// The job that the command line asks for. Throws c10::ValueError for a flag that cannot take effect, alone or with the
// others, and for a wrong value of one that says which nodes take part; other values are checked where they are used.
launcher::LaunchRequest read_launch_request(const program::CommandLine& line);

}  // namespace narrowcast
