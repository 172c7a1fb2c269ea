// Messages of integers whose width each block chooses, with a step for all of them: written and read one element after
// another. This is the definition; the kernels of ops/cpu/wire do the same many elements at a time.
// docs/wire_format.md describes the bytes.
//
// The least squared error for a number of bits is reached when all blocks have the same step and each as many bits as
// its largest number then needs (reverse water-filling: T. Cover and J. Thomas, "Elements of Information Theory",
// 10.3.3). So the encoder takes the least step with which the codes of all blocks fit the message, whose size is that
// of its number of elements alone. Bits are whole: what a block's leave free beyond its largest numbers a finer step of
// its own takes. Its codes reach as far to either side as its numbers do, as nearly as a sign of the step and a zero
// point can say: largest numbers of one sign alone would leave the codes of the other unused. Blocks below the step
// would be lost, which costs trainings more than their share of the error says: they are faint, with codes of 2 bits
// and a step that may be far below. Compile users with FMA contraction off.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/wire_rounding.h"
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

// The nearest code, ties to even.
NARROWCAST_HOST_DEVICE inline int32_t variable_code(float y) {
  constexpr float kRounder = 0x1.8p23F;  // The low bits of the sum are the whole number.
  return static_cast<int32_t>(float_bits(y + kRounder)) - static_cast<int32_t>(float_bits(kRounder));
}

// The code below or above, at random: the expected value is y to within 2^-24.
NARROWCAST_HOST_DEVICE inline int32_t variable_code(float y, uint32_t random) {
  const float below = std::floor(y);
  const auto fraction = static_cast<int32_t>((y - below) * 0x1p24F) + static_cast<int32_t>(random >> 8);
  return static_cast<int32_t>(below) + (fraction >> 24);
}

// The first of the bfloat16 bit patterns from `low` to `high` for which fits() is true, which is so from there on and
// for `high`. Its calls get the more expensive the more elements there are: about log2(high - low) of them.
template <class Fits>
uint16_t least_step(uint16_t low, uint16_t high, const Fits& fits) {
  while (low < high) {
    const auto middle = static_cast<uint16_t>(low + (high - low) / 2);
    if (fits(middle)) {
      high = middle;
    } else {
      low = static_cast<uint16_t>(middle + 1);
    }
  }
  return high;
}

inline BlockExtent extent_of_block(const float* x, int64_t n, int64_t i) {
  uint32_t side[2] = {};  // Of the positive numbers, and of the others.
  for (int64_t k = i * kVariableBlock; k < n && k < (i + 1) * kVariableBlock; ++k) {
    uint32_t& largest = side[float_bits(x[k]) >> 31];
    largest = magnitude_bits(x[k]) > largest ? magnitude_bits(x[k]) : largest;
  }
  return BlockExtent::of(side[0], side[1]);
}

// The step that a message of x has; kNanScale where a magnitude is above the greatest, or NaN.
inline uint16_t variable_step(int bits_per_element, const float* x, int64_t n, bool stochastic) {
  const VariableLayout layout = variable_layout(bits_per_element, n);
  uint32_t largest = 0;
  for (int64_t i = 0; i < layout.blocks; ++i) {
    const uint32_t of_block = extent_of_block(x, n, i).larger();
    largest = of_block > largest ? of_block : largest;
  }
  if (largest > kGreatestMagnitudeBits) {
    return kNanScale;
  }
  return least_step(kLeastStep, kGreatestStep, [&](uint16_t step) {
    const StepCodes codes = StepCodes::of(step, stochastic);
    int64_t bytes = 0;
    bool fits = codes.has_code(float_of_bits(largest) * codes.inverse);
    for (int64_t i = 0; fits && i < layout.blocks; ++i) {
      bytes += codes.width(extent_of_block(x, n, i)) * kWordBytes;
      fits = bytes <= layout.code_bytes;
    }
    return fits;
  });
}

// The code of y, which is number i of what `rounding` begins with.
inline int32_t variable_code(float y, const Rounding& rounding, int64_t i) {
  return rounding.stochastic ? variable_code(y, random_word(rounding, i)) : variable_code(y);
}

// The words of a block of n <= kVariableBlock elements that has this header, over whose step they are y = x * inverse.
// What is behind the last one is 0.
inline void encode_variable_block(const float* x, int64_t n, uint32_t header, float inverse, const Rounding& rounding,
                                  uint8_t* words) {
  const uint32_t width = width_of_header(header);
  for (uint32_t i = 0; i < width * kWordBytes; ++i) {
    words[i] = 0;
  }
  for (int64_t k = 0; width > 0 && k < kVariableBlock; ++k) {
    const int32_t from_zero = k < n ? variable_code(x[k] * inverse, rounding, k) : 0;
    const auto code = static_cast<uint32_t>(from_zero + zero_point_of_header(header));
    for (uint32_t plane = 0; plane < width; ++plane) {
      uint8_t& byte = words[plane * kWordBytes + k / 8];
      byte = static_cast<uint8_t>(byte | (code >> (width - 1 - plane) & 1U) << (k % 8));
    }
  }
}

// Code k of a block.
inline int32_t variable_code_at(const uint8_t* words, uint32_t width, int64_t k) {
  uint32_t code = 0;
  for (uint32_t plane = 0; plane < width; ++plane) {
    const uint32_t bit = uint32_t{words[plane * kWordBytes + k / 8]} >> (k % 8) & 1U;
    code = code << 1 | (plane == 0 ? 0U - bit : bit);  // The first plane is the sign's.
  }
  return static_cast<int32_t>(code);
}

// What a message begins with.
NARROWCAST_HOST_DEVICE inline uint16_t step_of_message(const uint8_t* bytes) {
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}

// A message to be read.
struct VariableMessage {
  uint16_t step;
  const uint8_t* headers;
  const uint8_t* codes;
  int64_t code_bytes;  // That can be read from there on.
};

// Of bytes that may be anything; variable_layout(bits_per_element, n).bytes of them, n > 0.
inline VariableMessage variable_message(int bits_per_element, const uint8_t* bytes, int64_t n) {
  const VariableLayout layout = variable_layout(bits_per_element, n);
  return {step_of_message(bytes), bytes + kStepBytes, bytes + layout.first_code, layout.code_bytes};
}

// The bytes of the codes of `blocks` blocks.
inline int64_t bytes_of_headers(const uint8_t* headers, int64_t blocks) {
  int64_t words = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    words += width_of_header(headers[i]);
  }
  return words * kWordBytes;
}

// Elements of a group that has these headers, from byte `begin` of the codes on, to out[0..n), n <= kVariableGroup.
// Where it would end behind the message it is NaN.
inline void decode_variable_group(const VariableMessage& message, const uint8_t* headers, int64_t begin, int64_t n,
                                  float* out) {
  const bool is_whole = begin + bytes_of_headers(headers, blocks_of(n)) <= message.code_bytes;
  const uint8_t* words = message.codes + (is_whole ? begin : 0);
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t header = headers[i / kVariableBlock];
    const float step = step_of_block(message.step, header);
    const uint32_t width = width_of_header(header);
    const int32_t zero_point = zero_point_of_header(header);
    for (int64_t k = i; k < n && k < i + kVariableBlock; ++k) {
      out[k] = is_whole ? step * static_cast<float>(variable_code_at(words, width, k - i) - zero_point)
                        : float_of_bits(kQuietNanBits);
    }
    words += is_whole ? width * kWordBytes : 0;
  }
}

// x[0..n), n <= kVariableGroup, of a message with this step, to the codes of a group that has these headers.
inline void encode_variable_group(const float* x, int64_t n, uint16_t step, const uint8_t* headers,
                                  const Rounding& rounding, uint8_t* words) {
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t header = headers[i / kVariableBlock];
    encode_variable_block(x + i, n - i < kVariableBlock ? n - i : kVariableBlock, header,
                          1.0F / step_of_block(step, header), rounding.at(i), words);
    words += width_of_header(header) * kWordBytes;
  }
}

// x[0..n) to variable_layout(bits_per_element, n).bytes.
inline void encode_variable(int bits_per_element, const float* x, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  const VariableLayout layout = variable_layout(bits_per_element, n);
  for (int64_t i = 0; i < layout.bytes; ++i) {
    bytes[i] = 0;
  }
  if (n == 0) {
    return;
  }
  const uint16_t step = variable_step(bits_per_element, x, n, rounding.stochastic);
  bytes[0] = static_cast<uint8_t>(step);
  bytes[1] = static_cast<uint8_t>(step >> 8);
  if (step == kNanScale) {
    return;
  }
  const StepCodes codes = StepCodes::of(step, rounding.stochastic);
  uint8_t* const headers = bytes + kStepBytes;
  for (int64_t i = 0; i < layout.blocks; ++i) {
    headers[i] = static_cast<uint8_t>(codes.header(extent_of_block(x, n, i)));
  }
  uint8_t* to = bytes + layout.first_code;
  for (int64_t i = 0; i < n; i += kVariableGroup) {
    const int64_t elements = n - i < kVariableGroup ? n - i : kVariableGroup;
    const uint8_t* const of_group = headers + i / kVariableBlock;
    encode_variable_group(x + i, elements, step, of_group, rounding.at(i), to);
    to += bytes_of_headers(of_group, blocks_of(elements));
  }
}

// variable_layout(bits_per_element, n).bytes of any content to out[0..n). Groups that would end behind the message, and
// all behind them, are NaN.
inline void decode_variable(int bits_per_element, const uint8_t* bytes, int64_t n, float* out) {
  if (n == 0) {
    return;
  }
  const VariableMessage message = variable_message(bits_per_element, bytes, n);
  int64_t begin = 0;
  for (int64_t i = 0; i < n; i += kVariableGroup) {
    const int64_t elements = n - i < kVariableGroup ? n - i : kVariableGroup;
    const uint8_t* const of_group = message.headers + i / kVariableBlock;
    decode_variable_group(message, of_group, begin, elements, out + i);
    begin += bytes_of_headers(of_group, blocks_of(elements));
  }
}

}  // namespace narrowcast::codec::wire
