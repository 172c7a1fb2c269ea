// The codec of PyTorch's reference hooks: 8-bit codes with scales and zero points.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/codec/codec.h"

namespace narrowcast {
namespace NARROWCAST_EXPORT collectives {  // Used by our other libraries as well.

// One-byte codes with a scale and zero point for each channel of `channel_size` >= 1 elements; the last channel may
// have fewer. Without a channel size there is one scale and zero point for the whole array. The result, with x_r the
// decoded message of rank r, is
//   (((+0 + x_0) + x_1) + ...) / W
// in float32, rounded once to the array's dtype. It has the bits of PyTorch's hooks on the same device.
//
// A message has the codec::AffineQparams of the channels, 8 bytes each, then a code per element; an empty array has an
// empty message. Without a channel size a CPU array may be sent in several chunks; only the first has qparams.
AllReduceCodecFactory affine_codec(std::optional<int64_t> channel_size);

// Message size in bytes of `numel` elements in channels.
int64_t affine_message_bytes(int64_t numel, int64_t channel_size);

}  // namespace collectives

// The codec of CUDA tensors. One kernel encodes (two if channels have more than 8192 elements), and one averages. In a
// build without CUDA it throws c10::Error.
namespace collectives::gpu {
std::unique_ptr<AllReduceCodec> affine_codec(std::optional<int64_t> channel_size);
}

}  // namespace narrowcast
