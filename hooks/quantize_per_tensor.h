#pragma once

#include <memory>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// "quantize_per_tensor": every rank sends its bucket in uint8 with one scale and
// zero point, and takes the mean of what all ranks sent. Bit for bit the result of
// PyTorch's quantization_pertensor_hook, rounded once to the bucket's dtype.
// Payload per peer: numel + 8 bytes; nothing for an empty bucket.
std::unique_ptr<CommHook> make_quantize_per_tensor_hook(const HookOptions& options);

}  // namespace narrowcast::hooks
