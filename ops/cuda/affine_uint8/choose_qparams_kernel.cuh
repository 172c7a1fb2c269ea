// The range of a channel and the qparams that follow from it, as PyTorch's
// observers compute them on CUDA.
#pragma once

#include <cstdint>

#include "ops/codec/affine_uint8.h"
#include "ops/codec/host_device.h"
#include "ops/cuda/affine_uint8/qparams.h"

namespace narrowcast::cuda {

// The least and the greatest of the values seen and 0. Floats order like integers: among those with the sign bit clear
// the greatest has the greatest signed bits, among those with it set the least has the greatest unsigned bits, and a
// NaN beats all others of its sign. So two integer maxima per value also find NaN.
struct RangeBits {
  uint32_t least = 0;
  int32_t greatest = 0;

  NARROWCAST_HOST_DEVICE void add(float value) {
    const uint32_t bits = codec::float_bits(value);
    const auto signed_bits = static_cast<int32_t>(bits);
    least = bits > least ? bits : least;
    greatest = signed_bits > greatest ? signed_bits : greatest;
  }

  // Both ends are NaN if one is.
  NARROWCAST_HOST_DEVICE codec::AffineRange range() const {
    // Without a value whose sign bit is set, the greatest unsigned bits are of a positive one.
    const float min = (least & codec::kSignBit) == 0 ? 0.0F : codec::float_of_bits(least);
    const float max = codec::float_of_bits(static_cast<uint32_t>(greatest));
    return {max != max ? max : min, min != min ? min : max};
  }
};

NARROWCAST_HOST_DEVICE inline RangeBits merge(RangeBits a, RangeBits b) {
  return {a.least > b.least ? a.least : b.least, a.greatest > b.greatest ? a.greatest : b.greatest};
}

// Writes a channel's qparams.
struct StoreQparams {
  QparamsOut out;

  NARROWCAST_HOST_DEVICE void operator()(int64_t channel, const RangeBits& bits) const {
    out.store(channel, codec::choose_qparams_by_reciprocal(bits.range()));
  }
};

}  // namespace narrowcast::cuda
