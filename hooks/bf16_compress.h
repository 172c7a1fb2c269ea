#pragma once

#include <memory>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// "bf16_compress": averages the bucket in bfloat16 (PyTorch's bf16_compress_hook).
std::unique_ptr<CommHook> make_bf16_compress_hook(const HookOptions& options);

}  // namespace narrowcast::hooks
