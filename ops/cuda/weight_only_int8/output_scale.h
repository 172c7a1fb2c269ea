// What becomes of the sums of an output's products.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::cuda {

struct OutputScale {
  float scale;
  float shift;

  NARROWCAST_HOST_DEVICE float apply(float sum) const { return sum * scale + shift; }
};

// The scale and bias of each output of a layer, of type S. bias may be null.
template <class S>
struct OutputScales {
  const S* scales;
  const S* bias;

  // Without a bias the shift is -0, which changes no sum.
  NARROWCAST_HOST_DEVICE OutputScale at(int64_t output) const {
    return {static_cast<float>(scales[output]), bias == nullptr ? -0.0F : static_cast<float>(bias[output])};
  }
};

}  // namespace narrowcast::cuda
