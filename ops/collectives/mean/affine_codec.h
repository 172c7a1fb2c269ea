// What PyTorch's reference hooks send: 8-bit codes with scales and zero points.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <narrowcast/export.h>
#include "ops/collectives/mean/mean_exchange.h"

namespace narrowcast::collectives {

// Codes of one byte with a scale and zero point for each channel of `channel_size` >= 1 elements, of which the last may
// have fewer; without a channel size one for the whole array. An array becomes
//   (((+0 + what rank 0 sent) + what rank 1 sent) + ...) / W
// in float32, rounded once to its dtype, with the bits that PyTorch's hooks have on its device.
//
// Messages have numel + 8 bytes, or numel + 8 for each channel; none of an empty array.
//   on the CPU:   the channels' codec::AffineQparams, then a code per element. Of the chunks of a whole array only the
//                 first has qparams.
//   on a device:  a code per element, then the scales, then the zero points, both float32.
NARROWCAST_EXPORT MeanCodecFactory affine_codec(std::optional<int64_t> channel_size);

// The size of the message of `numel` elements in channels.
NARROWCAST_EXPORT int64_t affine_message_bytes(int64_t numel, int64_t channel_size);

// The codec of devices, by the operators that PyTorch's hooks use (narrowcast/affine_uint8.h). Works on the CPU, too.
std::unique_ptr<MeanCodec> affine_codec_of_operators(std::optional<int64_t> channel_size);

}  // namespace narrowcast::collectives
