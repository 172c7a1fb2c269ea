// What PyTorch's reference hooks send: 8-bit codes with scales and zero points.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/codec/codec.h"

namespace narrowcast::collectives {

// Codes of one byte with a scale and zero point for each channel of `channel_size` >= 1 elements, of which the last may
// have fewer; without a channel size one for the whole array. An array becomes
//   (((+0 + what rank 0 sent) + what rank 1 sent) + ...) / W
// in float32, rounded once to its dtype, with the bits that PyTorch's hooks have on its device.
//
// Messages have numel + 8 bytes, or numel + 8 for each channel; none of an empty array: the channels'
// codec::AffineQparams, then a code per element. Of the chunks of a whole array, which there are on the CPU, only the
// first has qparams.
NARROWCAST_EXPORT AllReduceCodecFactory affine_codec(std::optional<int64_t> channel_size);

// The size of the message of `numel` elements in channels.
NARROWCAST_EXPORT int64_t affine_message_bytes(int64_t numel, int64_t channel_size);

// The codec of CUDA tensors: one kernel encodes, or two where channels have more than 8192 elements, and one averages.
// In a build without CUDA there are no such tensors, and it throws.
namespace gpu {
std::unique_ptr<AllReduceCodec> affine_codec(std::optional<int64_t> channel_size);
}

}  // namespace narrowcast::collectives
