// The bfloat16 that multiplies the codes of a message: the scale of a block or the step of a message.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::codec::wire {

// Codes are multiplied by the scale of their block. It is a bfloat16, which has float32's range; float16 would
// underflow on small gradients.

inline constexpr uint16_t kNanScale = kQuietNanBits >> 16;  // The scale of a block that contains NaN or Inf; it decodes
                                                            // as NaN.
inline constexpr uint32_t kScaleUnit = uint32_t{1} << 16;   // Distance of two neighbouring bfloat16, in the bits of a
                                                            // float32.
inline constexpr double kScaleStep = 0x1p-7;                // That distance is at most this fraction of the scale.

// A block whose scale would be below 2^kLeastScaleExponent counts as all zeros, so that no inverse overflows.
inline constexpr int kLeastScaleExponent = -100;
inline constexpr uint32_t kLeastScaleBits = uint32_t{127 + kLeastScaleExponent} << 23;

// The bfloat16 bits of the least scale with greatest_code * scale >= the block's largest magnitude, whose bits are
// `largest`: no element needs a code beyond greatest_code. 0 below 2^-100; kNanScale if `largest` is not finite. The
// product is exact, since bfloat16 and greatest_code have few digits, so rounding does not matter.
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

// The factor that turns the block's elements into numbers to be rounded to codes; 0 if all codes are 0.
NARROWCAST_HOST_DEVICE inline float inverse_scale(uint16_t scale) {
  return scale == 0 || scale == kNanScale ? 0 : 1.0F / scale_value(scale);
}

}  // namespace narrowcast::codec::wire
