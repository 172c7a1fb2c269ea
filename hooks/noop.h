#pragma once

#include <memory>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// "noop": sends nothing and leaves every rank its own gradient, to see what communication costs (PyTorch's noop_hook).
std::unique_ptr<CommHook> make_noop_hook(const HookOptions& options);

}  // namespace narrowcast::hooks
