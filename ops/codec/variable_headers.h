// Layout of messages with variable-width integers: the positions of headers and codes, the meaning of a block's header,
// and the width and header of a block for a given step. The messages are encoded and decoded in variable_width.h, which
// explains the format. Compile users with FMA contraction off.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/wire_rounding.h"
#include "ops/codec/wire_scale.h"

namespace narrowcast::codec::wire {

inline constexpr int64_t kVariableBlock = 32;  // Elements that share a header; one plane of their bits is a word.
inline constexpr int64_t kGroupBlocks = 32;    // Blocks that are decoded together or not at all.
inline constexpr int64_t kVariableGroup = kGroupBlocks * kVariableBlock;
inline constexpr int64_t kStepBytes = 2;
inline constexpr int64_t kWordBytes = 4;
inline constexpr int64_t kLeastVariableBytes = 36;  // Enough for 8-bit codes in a message of one block.
inline constexpr uint32_t kMostWidth = 15;
inline constexpr uint32_t kFaintWidth = 2;
inline constexpr uint32_t kMostOwnWidth = 8;        // For blocks with their own step.
inline constexpr uint32_t kMostZeroPointWidth = 7;  // For blocks that may have a zero point.

// Steps are bfloat16. The inverse of a step never overflows. With the greatest step every block fits in the codes of a
// faint block, even with stochastic rounding and the greatest magnitude on both sides; so some step always fits.
inline constexpr uint16_t kLeastStep = kLeastScaleBits >> 16;
inline constexpr uint16_t kGreatestStep = 0x7F7F;
inline constexpr uint32_t kGreatestMagnitudeBits = 0x7F7D0000U;  // Beyond it the message is NaN.

// Number of blocks of n elements.
NARROWCAST_HOST_DEVICE constexpr int64_t blocks_of(int64_t n) { return (n + kVariableBlock - 1) / kVariableBlock; }

// Positions in a message of n elements.
struct VariableLayout {
  int64_t blocks;      // The last one may be shorter.
  int64_t first_code;  // Offset in bytes of the codes, after the step and the headers.
  int64_t code_bytes;  // Bytes from there on.
  int64_t bytes;       // Bytes of the message.
};

NARROWCAST_HOST_DEVICE constexpr VariableLayout variable_layout(int bits_per_element, int64_t n) {
  const int64_t blocks = blocks_of(n);
  if (blocks == 0) {
    return {0, 0, 0, 0};
  }
  const int64_t wanted = blocks * bits_per_element * kVariableBlock / 8;
  const int64_t bytes = wanted < kLeastVariableBytes ? kLeastVariableBytes : wanted;
  const int64_t first_code = kStepBytes + blocks;
  return {blocks, first_code, bytes - first_code, bytes};
}

// The step, which is at the beginning of the message.
NARROWCAST_HOST_DEVICE inline uint16_t step_of_message(const uint8_t* bytes) {
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}

// A block's header is a byte. (An octave is 2^23 in the bits of a float32.)
//
// header    width           step
// 0         0               (a block of zeros)
// 1..7      8 + header      the message's
// 8..63     2 (faint)       (header - 8) / 2 quarters of an octave below the message's; bit 0: negative
// 64..255   bits 5..7 + 1   bits 2..4 are eighths of an octave below the message's; bit 1: there is a zero point;
//                           bit 0: negative
inline constexpr uint32_t kFirstFaint = 8;
inline constexpr uint32_t kFirstOwn = 64;
inline constexpr int kWidthShift = 5;
inline constexpr uint32_t kZeroPointBit = 2;
inline constexpr int kFractionShift = 20;  // An eighth of an octave.
inline constexpr int kFaintShift = 21;     // A quarter of an octave, for faint blocks.
inline constexpr uint32_t kMostFraction = 7;
inline constexpr uint32_t kMostFaint = (kFirstOwn - kFirstFaint) / 2 - 1;

NARROWCAST_HOST_DEVICE constexpr uint32_t width_of_header(uint32_t header) {
  if (header >= kFirstOwn) {
    return (header >> kWidthShift) + 1;
  }
  if (header >= kFirstFaint) {
    return kFaintWidth;
  }
  return header == 0 ? 0 : kMostOwnWidth + header;
}

// Difference between the message's and the block's step, in the bits of a float32.
NARROWCAST_HOST_DEVICE constexpr uint32_t distance_of_header(uint32_t header) {
  if (header >= kFirstOwn) {
    return (header / 4 & kMostFraction) << kFractionShift;
  }
  return header >= kFirstFaint ? (header - kFirstFaint) / 2 << kFaintShift : 0;
}

// The zero point of blocks of this width that have one: a quarter of 2^(width - 1). 0 for widths without zero points.
NARROWCAST_HOST_DEVICE constexpr int32_t zero_point_of_width(uint32_t width) {
  return width <= kMostZeroPointWidth ? int32_t{1} << width >> 3 : 0;
}

// The code that stands for 0.
NARROWCAST_HOST_DEVICE constexpr int32_t zero_point_of_header(uint32_t header) {
  const bool has_one = header >= kFirstOwn && (header & kZeroPointBit) != 0;
  return has_one ? zero_point_of_width(width_of_header(header)) : 0;
}

// The step of a block. Any message step and any header are allowed; a step that would be below 0 is 0.
NARROWCAST_HOST_DEVICE inline float step_of_block(uint16_t step, uint32_t header) {
  const uint32_t bits = uint32_t{step} << 16;
  const uint32_t distance = distance_of_header(header);
  const uint32_t sign = header >= kFirstFaint ? header << 31 : 0U;
  return float_of_bits((bits > distance ? bits - distance : 0U) ^ sign);
}

// Bytes of the codes of `blocks` blocks.
inline int64_t bytes_of_headers(const uint8_t* headers, int64_t blocks) {
  int64_t words = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    words += width_of_header(headers[i]);
  }
  return words * kWordBytes;
}

// The smallest bfloat16 that is not below a magnitude; Inf's for all magnitudes that are not finite.
NARROWCAST_HOST_DEVICE constexpr uint32_t bfloat16_above(uint32_t magnitude) {
  return ((magnitude < kInfBits ? magnitude : kInfBits) + (kScaleUnit - 1)) >> 16;
}

// The range of a block's numbers on both sides of 0, as two bfloat16; headers depend on nothing else. The upper half
// holds the larger one, the lower half the smaller one. The top bit is set if the larger one is positive.
struct BlockExtent {
  uint32_t bits = 0;

  static constexpr uint32_t kPositive = uint32_t{1} << 31;

  // `positive` is the bits of the largest positive number, `negative` of the largest magnitude of a negative one.
  // Either is 0 if the block has no such number.
  NARROWCAST_HOST_DEVICE static constexpr BlockExtent of(uint32_t positive, uint32_t negative) {
    const uint32_t p = bfloat16_above(positive);
    const uint32_t n = bfloat16_above(negative);
    return {p > n ? kPositive | p << 16 | n : n << 16 | p};
  }

  NARROWCAST_HOST_DEVICE constexpr uint32_t larger() const { return bits & ~kPositive & ~(kScaleUnit - 1); }
  NARROWCAST_HOST_DEVICE constexpr uint32_t smaller() const { return bits << 16; }
  NARROWCAST_HOST_DEVICE constexpr bool is_positive() const { return (bits & kPositive) != 0; }
};

inline BlockExtent extent_of_block(const float* x, int64_t n, int64_t i) {
  uint32_t side[2] = {};  // Positive numbers, negative numbers.
  for (int64_t k = i * kVariableBlock; k < n && k < (i + 1) * kVariableBlock; ++k) {
    uint32_t& largest = side[float_bits(x[k]) >> 31];
    largest = magnitude_bits(x[k]) > largest ? magnitude_bits(x[k]) : largest;
  }
  return BlockExtent::of(side[0], side[1]);
}

// The least step that a faint block can have.
inline constexpr uint32_t kLeastFaintBits = kLeastScaleBits - (uint32_t{1} << 23);

// The conversion of a message's numbers to codes.
struct StepCodes {
  uint16_t step;  // bfloat16.
  bool stochastic;
  float inverse;         // 1 / step.
  uint32_t least_faint;  // Bits of the least magnitude with which a block is not all zeros.

  // With rounding to nearest, a block becomes zeros if its step is too far below for a header. With stochastic rounding
  // no block may become zeros for that reason.
  NARROWCAST_HOST_DEVICE static StepCodes of(uint16_t step, const Rounding& rounding) {
    constexpr uint32_t kFarthest = kMostFaint << kFaintShift;
    const uint32_t bits = uint32_t{step} << 16;
    const bool is_limited = !rounding.stochastic && bits > kLeastFaintBits + kFarthest;
    return {step, rounding.stochastic, inverse_scale(step), is_limited ? bits - kFarthest : kLeastFaintBits};
  }

  // How far a number over the step may lie beyond the outermost code and still get it. It is smaller by 1/128, so that
  // rounding errors of products and quotients do not matter.
  static constexpr float kReachToNearest = 0.5F - 0x1p-7F;
  static constexpr float kReachAtRandom = -0x1p-7F;
  NARROWCAST_HOST_DEVICE constexpr float reach() const { return stochastic ? kReachAtRandom : kReachToNearest; }

  // Let B be half the number of codes of a width, and z the zero point (0 if absent). Codes over the step go from -(B +
  // z), on the side of the larger numbers, to B - 1 - z. Numbers may lie beyond them by up to reach(). The width needs
  // the least B that holds both sides, either without a zero point or with z = B / 4. In wide blocks, B holds the
  // larger magnitude on either side.
  static constexpr float kPerLarger = 0.8F;          // 1 / (1 + 1/4)
  static constexpr float kPerSmaller = 4.0F / 3.0F;  // 1 / (1 - 1/4)
  static constexpr float kMostOwnRange = uint32_t{1} << (kMostOwnWidth - 1);
  static constexpr float kFaintRange = uint32_t{1} << (kFaintWidth - 1);
  static constexpr float kAboveFaintRange = 0x1.000002p1F;
  static constexpr float kMostRange = uint32_t{1} << (kMostWidth - 1);

  // Whether the largest magnitude of a message, over the step, has a code.
  NARROWCAST_HOST_DEVICE bool has_code(float largest) const { return largest + (1 - reach()) <= kMostRange; }

  // Bits per code of a block whose larger number over the step has_code().
  NARROWCAST_HOST_DEVICE uint32_t width(BlockExtent extent) const {
    return width_of(extent, inverse, least_faint, reach());
  }

  // The same for given values of the members, without branches: the least of several widths is the width of the least
  // range. With a zero point, the least width is 3. At 8 bits there are no zero points; if the range with a zero point
  // needs 8 bits, 8 bits suffice without one.
  NARROWCAST_HOST_DEVICE static uint32_t width_of(BlockExtent extent, float inverse, uint32_t least_faint,
                                                  float reach) {
    const float larger = float_of_bits(extent.larger()) * inverse;
    const float smaller = float_of_bits(extent.smaller()) * inverse;
    const float a = larger - reach;
    const float c = smaller + (1 - reach);
    const float without = std::fmax(std::fmax(a, c), kFaintRange);
    const float about = std::fmax(std::fmax(a * kPerLarger, c * kPerSmaller), kAboveFaintRange);
    const float range = without > kMostOwnRange ? larger + (1 - reach) : std::fmin(without, about);
    return extent.larger() < least_faint ? 0 : width_of_range(range);
  }

  // The width with `range` codes on either side of 0, at least kFaintRange.
  NARROWCAST_HOST_DEVICE static uint32_t width_of_range(float range) {
    return (float_bits(range) + kWidthOfRange) >> 23;
  }
  static constexpr uint32_t kWidthOfRange =
      0x7FFFFFU - (uint32_t{126} << 23);  // Rounds up and subtracts the exponent's bias.

  // The header of such a block. It has the least step with which the block's numbers have codes of its width, or the
  // message's step if that is less.
  NARROWCAST_HOST_DEVICE uint32_t header(BlockExtent extent) const {
    const uint32_t digits = width(extent);
    if (digits == 0 || digits > kMostOwnWidth) {
      return digits == 0 ? 0 : digits - kMostOwnWidth;
    }
    const float without = least_step_of(extent, digits, 0);
    const float about = least_step_of(extent, digits, zero_point_of_width(digits));
    const uint32_t bits = uint32_t{step} << 16;
    const uint32_t needed = float_bits(about < without ? about : without);
    const uint32_t distance = bits > needed ? bits - needed : 0;
    const uint32_t sign = extent.is_positive() ? 1 : 0;
    if (digits == kFaintWidth) {
      const uint32_t quarters = distance >> kFaintShift;
      return kFirstFaint + 2 * (quarters < most_faint() ? quarters : most_faint()) + sign;
    }
    const uint32_t eighths = distance >> kFractionShift;
    return (digits - 1) << kWidthShift | (eighths < kMostFraction ? eighths : kMostFraction) << 2 |
           (about < without ? kZeroPointBit : 0U) | sign;
  }

  // Reciprocals of the greatest allowed quotients by the step: of the larger and of the smaller number of a block.
  NARROWCAST_HOST_DEVICE static constexpr float per_larger(uint32_t width, int32_t zero_point, float reach) {
    return 1 / (static_cast<float>((int32_t{1} << (width - 1)) + zero_point) + reach);
  }
  NARROWCAST_HOST_DEVICE static constexpr float per_smaller(uint32_t width, int32_t zero_point, float reach) {
    return 1 / (static_cast<float>((int32_t{1} << (width - 1)) - 1 - zero_point) + reach);
  }

  // The least step with which the block's numbers have codes of this width.
  NARROWCAST_HOST_DEVICE float least_step_of(BlockExtent extent, uint32_t width, int32_t zero_point) const {
    const float of_larger = float_of_bits(extent.larger()) * per_larger(width, zero_point, reach());
    const float of_smaller = float_of_bits(extent.smaller()) * per_smaller(width, zero_point, reach());
    return of_larger > of_smaller ? of_larger : of_smaller;
  }

  // The most quarters of an octave by which the step of a faint block may be below the message's.
  NARROWCAST_HOST_DEVICE uint32_t most_faint() const {
    const uint32_t quarters = ((uint32_t{step} << 16) - kLeastFaintBits) >> kFaintShift;
    return quarters < kMostFaint ? quarters : kMostFaint;
  }
};

}  // namespace narrowcast::codec::wire
