// Hooks by name.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hooks/comm_hook.h"
#include "hooks/hook_options.h"
#include "ops/export.h"

namespace narrowcast::hooks {

// The names create_comm_hook takes, "none" first, in the order of the documentation.
NARROWCAST_EXPORT std::vector<std::string> comm_hook_names();

// c10::ValueError for an unknown name (it lists the known ones), and for options that have no effect with the hook.
NARROWCAST_EXPORT void check_comm_hook(const std::string& name, const WireOptions& wire);

// The format in which that hook sends; nothing for hooks that are not of wire formats.
NARROWCAST_EXPORT std::optional<WireFormat> wire_format_of(const std::string& hook, const WireOptions& wire = {});

// The hook of that name; null for "none", with which the Reducer averages by itself. Collective in spirit: all ranks
// create the same hooks. c10::ValueError as above, and for a process group that is missing or that has no backend for
// what the hook needs.
NARROWCAST_EXPORT std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options);

}  // namespace narrowcast::hooks
