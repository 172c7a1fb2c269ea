// The largest magnitude of a channel and the scale that follows from it, as PyTorch
// computes it on CUDA.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/weight_only_int8.h"

namespace narrowcast::cuda {

// The bits of the largest magnitude seen. They order as the magnitudes do, with NaN above all.
struct MagnitudeBits {
  uint32_t largest = 0;

  NARROWCAST_HOST_DEVICE void add(float value) {
    const uint32_t bits = codec::magnitude_bits(value);
    largest = bits > largest ? bits : largest;
  }
};

NARROWCAST_HOST_DEVICE inline MagnitudeBits merge(MagnitudeBits a, MagnitudeBits b) {
  return {a.largest > b.largest ? a.largest : b.largest};
}

// Writes a channel's scale and its zero point, 0.
template <class T>
struct StoreSymmetricScale {
  codec::CodeRange range;
  T* scales;
  int64_t* zero_points;

  NARROWCAST_HOST_DEVICE void operator()(int64_t channel, MagnitudeBits bits) const {
    scales[channel] = codec::symmetric_scale_by_reciprocal<T>(codec::float_of_bits(bits.largest), range);
    zero_points[channel] = 0;
  }
};

}  // namespace narrowcast::cuda
