#pragma once

#include <memory>

#include "hooks/comm_hook.h"
#include "hooks/hook_options.h"

namespace narrowcast::hooks {

// "quantize_per_channel": every rank sends its bucket in uint8 with a scale and
// zero point per 512 elements, and takes the mean of what all ranks sent. Bit for
// bit the result of PyTorch's quantization_perchannel_hook, rounded once to the
// bucket's dtype. Payload per peer: numel + 8 * ceil(numel / 512) bytes.
std::unique_ptr<CommHook> make_quantize_per_channel_hook(const HookOptions& options);

}  // namespace narrowcast::hooks
