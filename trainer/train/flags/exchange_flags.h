// The flags of narrowcast-train that say how gradients are exchanged.
#pragma once

#include <string>
#include <vector>

#include <narrowcast/ddp_options.h>
#include "trainer/base/program/command_line.h"

namespace narrowcast {

// Their names, and those of them that only some hooks take.
const std::vector<std::string>& exchange_flags();
const std::vector<std::string>& hook_option_flags();

// What they say. Throws c10::ValueError for a format that is none; the rest is checked where it is used.
DdpOptions read_ddp(const program::CommandLine& line);

}  // namespace narrowcast
