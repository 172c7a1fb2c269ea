// What messages of integers whose width each block chooses are made of: where they have what, what the headers of their
// blocks say, and which widths and headers a step makes of how far the numbers of blocks reach. variable_width.h makes
// the messages, and says why so. Compile users with FMA contraction off.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/wire_scale.h"

namespace narrowcast::codec::wire {

inline constexpr int64_t kVariableBlock = 32;  // Elements that share a header; a plane of their bits is a word.
inline constexpr int64_t kGroupBlocks = 32;    // Blocks that are read as a whole or not at all.
inline constexpr int64_t kVariableGroup = kGroupBlocks * kVariableBlock;
inline constexpr int64_t kStepBytes = 2;
inline constexpr int64_t kWordBytes = 4;
inline constexpr int64_t kLeastVariableBytes = 36;  // So that a message of one block has codes of 8 bits.
inline constexpr uint32_t kMostWidth = 15;
inline constexpr uint32_t kFaintWidth = 2;
inline constexpr uint32_t kMostOwnWidth = 8;        // Of blocks with a step of their own.
inline constexpr uint32_t kMostZeroPointWidth = 7;  // Of those that may have a zero point.

// Steps are bfloat16. No inverse of one overflows, and the greatest leaves no block more than the codes of a faint one,
// not even at random and with the greatest magnitude on both sides, so that some step fits always.
inline constexpr uint16_t kLeastStep = kLeastScaleBits >> 16;
inline constexpr uint16_t kGreatestStep = 0x7F7F;
inline constexpr uint32_t kGreatestMagnitudeBits = 0x7F7D0000U;  // Beyond it a message is NaN.

// Of n elements.
NARROWCAST_HOST_DEVICE constexpr int64_t blocks_of(int64_t n) { return (n + kVariableBlock - 1) / kVariableBlock; }

// Where a message of n elements has what.
struct VariableLayout {
  int64_t blocks;      // The last one may be shorter.
  int64_t first_code;  // The byte where the codes begin, behind the step and the headers.
  int64_t code_bytes;  // From there on.
  int64_t bytes;       // In all.
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

// What a message begins with.
NARROWCAST_HOST_DEVICE inline uint16_t step_of_message(const uint8_t* bytes) {
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}

// A block's header is a byte: 0 of a block of zeros; below kFirstFaint a width above kMostOwnWidth, with the message's
// step; then faint blocks; from kFirstOwn on the width in the upper 3 bits. The lowest bit of the two latter says that
// the step is negative, the others how far it is below the message's in parts of an octave, 2^23 in the bits of a
// float32; and bit 1 of the last that there is a zero point.
inline constexpr uint32_t kFirstFaint = 8;
inline constexpr uint32_t kFirstOwn = 64;
inline constexpr int kWidthShift = 5;
inline constexpr uint32_t kZeroPointBit = 2;
inline constexpr int kFractionShift = 20;  // Of an eighth of an octave,
inline constexpr int kFaintShift = 21;     // and of a quarter, for faint blocks.
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

// How far the block's step is below that of the message, in the bits of a float32.
NARROWCAST_HOST_DEVICE constexpr uint32_t distance_of_header(uint32_t header) {
  if (header >= kFirstOwn) {
    return (header / 4 & kMostFraction) << kFractionShift;
  }
  return header >= kFirstFaint ? (header - kFirstFaint) / 2 << kFaintShift : 0;
}

// A quarter of what the codes' sign bit counts, of a block that has a zero point; 0 of a width without.
NARROWCAST_HOST_DEVICE constexpr int32_t zero_point_of_width(uint32_t width) {
  return width <= kMostZeroPointWidth ? int32_t{1} << width >> 3 : 0;
}

// The code of 0.
NARROWCAST_HOST_DEVICE constexpr int32_t zero_point_of_header(uint32_t header) {
  const bool has_one = header >= kFirstOwn && (header & kZeroPointBit) != 0;
  return has_one ? zero_point_of_width(width_of_header(header)) : 0;
}

// The step of a block. The message's and the header may be any; 0 is below all.
NARROWCAST_HOST_DEVICE inline float step_of_block(uint16_t step, uint32_t header) {
  const uint32_t bits = uint32_t{step} << 16;
  const uint32_t distance = distance_of_header(header);
  const uint32_t sign = header >= kFirstFaint ? header << 31 : 0U;
  return float_of_bits((bits > distance ? bits - distance : 0U) ^ sign);
}

// The bytes of the codes of `blocks` blocks.
inline int64_t bytes_of_headers(const uint8_t* headers, int64_t blocks) {
  int64_t words = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    words += width_of_header(headers[i]);
  }
  return words * kWordBytes;
}

// The bfloat16 that is next to a magnitude and not below it; that of Inf for all that is not finite.
NARROWCAST_HOST_DEVICE constexpr uint32_t bfloat16_above(uint32_t magnitude) {
  return ((magnitude < kInfBits ? magnitude : kInfBits) + (kScaleUnit - 1)) >> 16;
}

// How far the numbers of a block reach to either side of 0, as far as headers depend on them: the larger of the two
// bfloat16 in the upper half, the smaller in the lower one, and at the top whether the larger is of the positive ones.
struct BlockExtent {
  uint32_t bits = 0;

  static constexpr uint32_t kPositive = uint32_t{1} << 31;

  // Of the bits of the largest positive number, and of the largest magnitude of a negative one; 0 where there is none.
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
  uint32_t side[2] = {};  // Of the positive numbers, and of the others.
  for (int64_t k = i * kVariableBlock; k < n && k < (i + 1) * kVariableBlock; ++k) {
    uint32_t& largest = side[float_bits(x[k]) >> 31];
    largest = magnitude_bits(x[k]) > largest ? magnitude_bits(x[k]) : largest;
  }
  return BlockExtent::of(side[0], side[1]);
}

// The least step that a faint block can have.
inline constexpr uint32_t kLeastFaintBits = kLeastScaleBits - (uint32_t{1} << 23);

// How a message's numbers become codes.
struct StepCodes {
  uint16_t step;  // bfloat16.
  bool stochastic;
  float inverse;         // Of the step.
  uint32_t least_faint;  // The least magnitude that leaves a block more than zeros, in its bits.

  // To nearest, blocks that are farther below than a header can say are zeros. At random no block must be.
  NARROWCAST_HOST_DEVICE static StepCodes of(uint16_t step, bool stochastic) {
    constexpr uint32_t kFarthest = kMostFaint << kFaintShift;
    const uint32_t bits = uint32_t{step} << 16;
    const bool is_limited = !stochastic && bits > kLeastFaintBits + kFarthest;
    return {step, stochastic, inverse_scale(step), is_limited ? bits - kFarthest : kLeastFaintBits};
  }

  // How far beyond the outermost code a number over the step may be to get it; by a 128th less, so that no rounding of
  // products and quotients matters.
  NARROWCAST_HOST_DEVICE static constexpr float reach(bool stochastic) {
    return stochastic ? -0x1p-7F : 0.5F - 0x1p-7F;
  }

  // With B the half of the number of codes of a width and z the zero point or 0, codes over the step go from -(B + z),
  // on the side of the larger numbers, to B - 1 - z, and numbers beyond them as far as reach(). The least B that holds
  // both sides without a zero point, and with one of B / 4; in wide blocks, one that holds the larger on either side.
  static constexpr float kPerLarger = 0.8F;          // 1 / (1 + 1/4)
  static constexpr float kPerSmaller = 4.0F / 3.0F;  // 1 / (1 - 1/4)
  static constexpr float kMostOwnRange = uint32_t{1} << (kMostOwnWidth - 1);
  static constexpr float kFaintRange = uint32_t{1} << (kFaintWidth - 1);
  static constexpr float kAboveFaintRange = 0x1.000002p1F;
  static constexpr float kMostRange = uint32_t{1} << (kMostWidth - 1);

  // Whether the largest magnitude of a message, over the step, has a code.
  NARROWCAST_HOST_DEVICE bool has_code(float largest) const { return largest + (1 - reach(stochastic)) <= kMostRange; }

  // Bits for the codes of a block whose larger number over the step has_code().
  NARROWCAST_HOST_DEVICE uint32_t width(BlockExtent extent) const {
    return width_of(extent, inverse, least_faint, reach(stochastic));
  }

  // The same of a step's inverse and so on, without a branch: the least of several widths is that of the least range.
  // With a zero point 3 bits are the least. With one and 8 bits there is none, and then 8 are what it takes without,
  // too.
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

  // The bits of codes of which half are so many, at least kFaintRange.
  NARROWCAST_HOST_DEVICE static uint32_t width_of_range(float range) {
    return (float_bits(range) + kWidthOfRange) >> 23;
  }
  static constexpr uint32_t kWidthOfRange =
      0x7FFFFFU - (uint32_t{126} << 23);  // Rounds up, and takes the exponent's bias.

  // The header of such a block: the least step with which its numbers have codes of its width, or if none below the
  // message's does, that.
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

  // One over what the larger and the smaller number of a block may be over its step.
  NARROWCAST_HOST_DEVICE static constexpr float per_larger(uint32_t width, int32_t zero_point, bool stochastic) {
    return 1 / (static_cast<float>((int32_t{1} << (width - 1)) + zero_point) + reach(stochastic));
  }
  NARROWCAST_HOST_DEVICE static constexpr float per_smaller(uint32_t width, int32_t zero_point, bool stochastic) {
    return 1 / (static_cast<float>((int32_t{1} << (width - 1)) - 1 - zero_point) + reach(stochastic));
  }

  // The least step with which such a block's numbers have codes.
  NARROWCAST_HOST_DEVICE float least_step_of(BlockExtent extent, uint32_t width, int32_t zero_point) const {
    const float of_larger = float_of_bits(extent.larger()) * per_larger(width, zero_point, stochastic);
    const float of_smaller = float_of_bits(extent.smaller()) * per_smaller(width, zero_point, stochastic);
    return of_larger > of_smaller ? of_larger : of_smaller;
  }

  // How many quarters of an octave the step of a faint block is below at most.
  NARROWCAST_HOST_DEVICE uint32_t most_faint() const {
    const uint32_t quarters = ((uint32_t{step} << 16) - kLeastFaintBits) >> kFaintShift;
    return quarters < kMostFaint ? quarters : kMostFaint;
  }
};

}  // namespace narrowcast::codec::wire
