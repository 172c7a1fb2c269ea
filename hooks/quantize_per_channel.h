#pragma once

#include <memory>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// "quantize_per_channel": every rank sends its bucket in uint8 with a scale and
// zero point per channel, which is options.channel_size elements (the last one of
// a bucket may have fewer), and takes the mean of what all ranks sent. Bit for bit
// the result of PyTorch's quantization_perchannel_hook with that bucket_size,
// rounded once to the bucket's dtype.
// Payload per peer: numel + 8 * ceil(numel / channel_size) bytes.
std::unique_ptr<CommHook> make_quantize_per_channel_hook(const HookOptions& options);

}  // namespace narrowcast::hooks
