// What the codes of a message are multiplied with: a bfloat16, the scale of a block or the step of a message.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::codec::wire {

// The scale of a block is what its codes are multiplied with. It is kept as bfloat16, which has float32's range;
// float16 would underflow on small gradients.

inline constexpr uint16_t kNanScale = kQuietNanBits >> 16;  // A block with NaN or Inf has it, and decodes as NaN.
inline constexpr uint32_t kScaleUnit = uint32_t{1} << 16;   // From one bfloat16 to the next, in the bits of a float32.
inline constexpr double kScaleStep = 0x1p-7;                // That is at most so much, relative to the scale.

// A block whose scale would be below 2 to this counts as all zeros, so that no inverse overflows.
inline constexpr int kLeastScaleExponent = -100;
inline constexpr uint32_t kLeastScaleBits = uint32_t{127 + kLeastScaleExponent} << 23;

// The bfloat16 bits of the least scale with greatest_code * scale >= the block's largest magnitude, whose bits are
// `largest`: no element needs a code beyond greatest_code. 0 below 2^-100; kNanScale where `largest` is not finite.
// The product is exact, since bfloat16 and greatest_code have few digits, so this is no matter of rounding.
NARROWCAST_HOST_DEVICE inline uint16_t block_scale(uint32_t largest, float greatest_code) {
  if (largest >= kInfBits) {
    return kNanScale;
  }
  const float magnitude = float_of_bits(largest);
  uint32_t scale = float_bits(magnitude / greatest_code) & ~(kScaleUnit - 1);
  if (float_of_bits(scale) * greatest_code < magnitude) {
    scale += kScaleUnit;
  }
  return static_cast<uint16_t>(scale < kLeastScaleBits ? 0 : scale >> 16);
}

// The value of a scale's bits.
NARROWCAST_HOST_DEVICE inline float scale_value(uint16_t scale) { return float_of_bits(uint32_t{scale} << 16); }

// What the block's elements are multiplied with to be rounded to codes; 0 where all codes are 0.
NARROWCAST_HOST_DEVICE inline float inverse_scale(uint16_t scale) {
  return scale == 0 || scale == kNanScale ? 0 : 1.0F / scale_value(scale);
}

}  // namespace narrowcast::codec::wire
