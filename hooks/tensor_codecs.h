// What the quantised reference hooks send, as tensors.
#pragma once

#include <cstdint>

#include "hooks/gathered_mean.h"

namespace narrowcast::hooks {

// "quantize_per_tensor": float32 [2] of scale and zero point, then uint8 [numel].
TensorCodec per_tensor_codec();

// "quantize_per_channel", with rows of `channel_size` >= 1 elements, the last one filled up with zeros where there are
// several: float32 [2, rows] of scales and zero points, then uint8 [numel] of codes, without those of the filling.
TensorCodec per_channel_codec(int64_t channel_size);

}  // namespace narrowcast::hooks
