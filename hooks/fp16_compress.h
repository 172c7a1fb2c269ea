#pragma once

#include <memory>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// "fp16_compress": averages the bucket in IEEE half precision (PyTorch's fp16_compress_hook).
std::unique_ptr<CommHook> make_fp16_compress_hook(const HookOptions& options);

}  // namespace narrowcast::hooks
