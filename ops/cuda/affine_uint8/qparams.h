// Where the scale and zero point of each channel lie on the device. They are never
// read by the host, which would have to wait for them.
#pragma once

#include <cstdint>

#include "ops/codec/affine_uint8.h"
#include "ops/codec/host_device.h"

namespace narrowcast::cuda {

// Zero points are int32 or float32: one of the two pointers is null. They must be whole numbers in [0, 255]; another
// one gives codes without a meaning.
struct QparamsIn {
  const float* scales;
  const int32_t* int_zero_points;
  const float* float_zero_points;

  NARROWCAST_HOST_DEVICE codec::AffineQparams at(int64_t channel) const {
    return {scales[channel],
            int_zero_points != nullptr ? int_zero_points[channel] : static_cast<int32_t>(float_zero_points[channel])};
  }
};

struct QparamsOut {
  float* scales;
  int32_t* zero_points;

  NARROWCAST_HOST_DEVICE void store(int64_t channel, codec::AffineQparams qparams) const {
    scales[channel] = qparams.scale;
    zero_points[channel] = qparams.zero_point;
  }
};

}  // namespace narrowcast::cuda
