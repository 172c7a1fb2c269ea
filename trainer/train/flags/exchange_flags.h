// The flags of narrowcast-train for hooks and synchronisation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/outer_options.h>
#include "trainer/train/flags/given_flags.h"

namespace narrowcast {

// The flags of local averaging: options of hooks that average in groups of ranks, and of the synchronisation between
// these groups. hook_flags() has the flags of all hooks' options.
std::vector<std::string> local_flags();
std::vector<std::string> hook_flags();

// Throws c10::ValueError naming the flag if an option was given that this hook does not have, or that has no effect
// with the other given options, or if the hook is unknown.
void refuse_other_hooks_options(const Given& given, const std::string& hook);

// The options of gradient exchange with that hook. Values are checked where they are used.
DdpOptions read_ddp(const Given& given, const std::string& hook);

// Whether flags select steps of groups between averages of all ranks: --sync_every or --sync_seconds.
bool takes_local_steps(const Given& given);

// The options of synchronisation between groups; empty without local steps. Values are checked where they are used.
std::optional<OuterOptions> read_outer(const Given& given);

}  // namespace narrowcast
