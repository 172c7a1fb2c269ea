#pragma once

#include <memory>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// "allreduce": divides the bucket by the world size, then all-reduces it (PyTorch's allreduce_hook).
std::unique_ptr<CommHook> make_allreduce_hook(const HookOptions& options);

}  // namespace narrowcast::hooks
