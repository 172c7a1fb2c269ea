// Hooks by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hooks/comm_hook.h"
#include "hooks/hook_options.h"
#include "ops/export.h"

namespace narrowcast::hooks {

// The names create_comm_hook takes, "none" first, in the order of the documentation.
NARROWCAST_EXPORT std::vector<std::string> comm_hook_names();

// The hook of that name; null for "none", with which the Reducer averages by itself. Collective in spirit: all ranks
// create the same hooks. c10::ValueError for an unknown name (it lists the known ones), for a process group that is
// missing or that has no backend for what the hook needs, and for options that have no effect with the hook.
NARROWCAST_EXPORT std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options);

}  // namespace narrowcast::hooks
