// Messages of integers whose width each block chooses, in all of which one step holds: written and read one element
// after another. This is the definition; the kernels of ops/cpu/wire do the same many elements at a time.
// docs/wire_format.md describes the bytes.
//
// The least squared error for a number of bits is reached when all blocks have the same step and each as many bits as
// its largest number then needs (reverse water-filling: T. Cover and J. Thomas, "Elements of Information Theory",
// 10.3.3). So the encoder takes the least step with which the codes of all blocks fit the message, whose size is that
// of its number of elements alone. Blocks below the step would be lost, which costs trainings more than their share of
// the error says: they have a scale of their own, and codes of -1, 0 and 1. Compile users with FMA contraction off.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/wire_rounding.h"
#include "ops/codec/wire_scale.h"

namespace narrowcast::codec::wire {

inline constexpr int64_t kVariableBlock = 32;  // Elements that share a width; a plane of their bits is a word.
inline constexpr int64_t kGroupBlocks = 32;    // Blocks whose codes lie together, behind those of the group before.
inline constexpr int64_t kVariableGroup = kGroupBlocks * kVariableBlock;
inline constexpr int64_t kStepBytes = 2;
inline constexpr int64_t kWordBytes = 4;
inline constexpr int64_t kLeastVariableBytes = 36;  // So that a message of one block has codes of 8 bits.
inline constexpr int kMostWidth = 16;
inline constexpr uint32_t kFaintWidth = 2;     // Of blocks that have a scale of their own.
inline constexpr int kOwnScaleShift = 21;      // That is the exponent of a float32 and two digits behind the 1,
inline constexpr uint32_t kStepItself = 0xFF;  // and travels as a byte: how far below the step, or this.

// How far below the step an own scale is at most. With 3 bits there is no room for blocks far below: as faint ones they
// would take three quarters of their share, at the expense of all others. At random they must not become zeros.
NARROWCAST_HOST_DEVICE constexpr uint32_t farthest_own_scale(int bits_per_element, bool stochastic) {
  return bits_per_element > 3 || stochastic ? kStepItself - 1 : 4;
}
inline constexpr float kGreatestVariableCode = 32767;

// Steps are bfloat16. No inverse of one overflows, and the greatest leaves no block more than the codes of a faint one,
// so that some step fits always.
inline constexpr uint16_t kLeastStep = kLeastScaleBits >> 16;
inline constexpr uint16_t kGreatestStep = 0x7F7F;
inline constexpr uint32_t kGreatestMagnitudeBits = uint32_t{kGreatestStep} << 16;  // Beyond it a message is NaN.

// Where a message of n elements has what.
struct VariableLayout {
  int64_t blocks;      // The last one may be shorter.
  int64_t first_code;  // The byte where the codes begin, behind the step and the widths.
  int64_t code_bytes;  // From there on.
  int64_t bytes;       // In all.
};

NARROWCAST_HOST_DEVICE constexpr VariableLayout variable_layout(int bits_per_element, int64_t n) {
  const int64_t blocks = (n + kVariableBlock - 1) / kVariableBlock;
  if (blocks == 0) {
    return {0, 0, 0, 0};
  }
  const int64_t wanted = blocks * bits_per_element * kVariableBlock / 8;
  const int64_t bytes = wanted < kLeastVariableBytes ? kLeastVariableBytes : wanted;
  const int64_t first_code = kStepBytes + (blocks + 1) / 2;
  return {blocks, first_code, bytes - first_code, bytes};
}

// Widths travel as 4 bits: 0, or the width less one. A width of 1 could say 0 and -1, and is never needed.
NARROWCAST_HOST_DEVICE constexpr uint32_t width_of_nibble(uint32_t nibble) { return nibble == 0 ? 0 : nibble + 1; }
NARROWCAST_HOST_DEVICE constexpr uint32_t nibble_of_width(uint32_t width) { return width == 0 ? 0 : width - 1; }

// Bytes of a block's codes, and of a scale of its own.
NARROWCAST_HOST_DEVICE constexpr uint32_t bytes_of_width(uint32_t width) {
  return width * static_cast<uint32_t>(kWordBytes) + (width == kFaintWidth ? 1U : 0U);
}
inline constexpr int64_t kMostGroupBytes = kGroupBlocks * bytes_of_width(kMostWidth);

// The nibble of block i of those that begin at `widths`.
NARROWCAST_HOST_DEVICE inline uint32_t nibble_at(const uint8_t* widths, int64_t i) {
  return uint32_t{widths[i / 2]} >> (4 * (i % 2)) & 15U;
}

// How numbers become codes. A number y is one already multiplied with the step's inverse.
struct StepCodes {
  float step;
  float inverse;
  bool stochastic;
  uint32_t farthest = kStepItself - 1;  // farthest_own_scale of the format.

  // Of a step's bfloat16 bits.
  NARROWCAST_HOST_DEVICE static StepCodes of(uint16_t bits, bool stochastic, int bits_per_element) {
    return {scale_value(bits), inverse_scale(bits), stochastic, farthest_own_scale(bits_per_element, stochastic)};
  }

  // Whether the largest y of a message has a code.
  NARROWCAST_HOST_DEVICE bool has_code(float largest) const {
    return stochastic ? largest <= kGreatestVariableCode : largest < kGreatestVariableCode + 0.5F;
  }

  // Bits for the codes of a block whose largest magnitude has these bits; has_code(its y).
  NARROWCAST_HOST_DEVICE uint32_t width(uint32_t largest) const {
    constexpr float kRounder = 0x1p23F;
    const float y = float_of_bits(largest) * inverse;
    const float code = stochastic ? std::ceil(y) : (y + kRounder) - kRounder;
    if (code >= 2) {
      return (float_bits(code) >> 23) - 125;  // 1 and the number of its digits.
    }
    return own_scale(largest) < least_own_scale() ? 0 : kFaintWidth;
  }

  // The own scale of a faint block is made of the first bits of its largest magnitude, or at random the least that is
  // not below, so that its codes are at most 1.
  NARROWCAST_HOST_DEVICE uint32_t own_scale(uint32_t largest) const {
    return (largest + own_scale_carry()) >> kOwnScaleShift;
  }
  NARROWCAST_HOST_DEVICE uint32_t own_scale_carry() const {
    return stochastic ? (uint32_t{1} << kOwnScaleShift) - 1 : 0U;
  }

  // The least one that there is: half of the least step, or the farthest from the step. Blocks below are zeros.
  NARROWCAST_HOST_DEVICE uint32_t least_own_scale() const {
    constexpr uint32_t kLeast = (kLeastScaleBits - (uint32_t{1} << 23)) >> kOwnScaleShift;
    return first_bits() > kLeast + farthest ? first_bits() - farthest : kLeast;
  }

  // How far an own scale is below the step's first bits. A block just above the step has the step itself.
  NARROWCAST_HOST_DEVICE uint32_t distance_of(uint32_t own) const {
    return own > first_bits() ? kStepItself : first_bits() - own;
  }

  // What the codes of a faint block with that distance are multiplied with.
  NARROWCAST_HOST_DEVICE float own_step(uint32_t distance) const {
    const uint32_t own = distance < first_bits() ? first_bits() - distance : 0U;
    return distance == kStepItself ? step : float_of_bits(own << kOwnScaleShift);
  }

  // The codes of a faint block with that distance.
  NARROWCAST_HOST_DEVICE StepCodes faint(uint32_t distance) const {
    if (distance == kStepItself) {
      return *this;
    }
    const float scale = own_step(distance);
    const float inverse = 1.0F / scale;
    // That of 1.5 * 2^127 is subnormal and rounded up, and would make more than 1 of it.
    return {scale, float_of_bits(float_bits(inverse) - (scale * inverse > 1 ? 1U : 0U)), stochastic, farthest};
  }

  // The codes of a block of this width, whose largest magnitude has these bits.
  NARROWCAST_HOST_DEVICE StepCodes of_block(uint32_t block_width, uint32_t largest) const {
    return block_width == kFaintWidth ? faint(distance_of(own_scale(largest))) : *this;
  }

  // Of the step, as many as an own scale has.
  NARROWCAST_HOST_DEVICE uint32_t first_bits() const { return float_bits(step) >> kOwnScaleShift; }
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

// The bits of the largest magnitude of block i.
inline uint32_t largest_of_block(const float* x, int64_t n, int64_t i) {
  uint32_t largest = 0;
  for (int64_t k = i * kVariableBlock; k < n && k < (i + 1) * kVariableBlock; ++k) {
    largest = magnitude_bits(x[k]) > largest ? magnitude_bits(x[k]) : largest;
  }
  return largest;
}

// The step that a message of x has; kNanScale where a number is NaN, Inf or beyond the greatest bfloat16.
inline uint16_t variable_step(int bits_per_element, const float* x, int64_t n, bool stochastic) {
  const VariableLayout layout = variable_layout(bits_per_element, n);
  uint32_t largest = 0;
  for (int64_t i = 0; i < layout.blocks; ++i) {
    largest = largest_of_block(x, n, i) > largest ? largest_of_block(x, n, i) : largest;
  }
  if (largest > kGreatestMagnitudeBits) {
    return kNanScale;
  }
  return least_step(kLeastStep, kGreatestStep, [&](uint16_t step) {
    const StepCodes codes = StepCodes::of(step, stochastic, bits_per_element);
    int64_t bytes = 0;
    bool fits = codes.has_code(float_of_bits(largest) * codes.inverse);
    for (int64_t i = 0; fits && i < layout.blocks; ++i) {
      bytes += bytes_of_width(codes.width(largest_of_block(x, n, i)));
      fits = bytes <= layout.code_bytes;
    }
    return fits;
  });
}

// The code of x, which is number i of what `rounding` begins with.
inline int32_t variable_code(float x, const StepCodes& codes, const Rounding& rounding, int64_t i) {
  const float y = x * codes.inverse;
  return rounding.stochastic ? variable_code(y, random_word(rounding, i)) : variable_code(y);
}

// The `width` words of a block of n <= kVariableBlock elements.
inline void encode_variable_block(const float* x, int64_t n, uint32_t width, const StepCodes& codes,
                                  const Rounding& rounding, uint8_t* words) {
  for (uint32_t i = 0; i < width * kWordBytes; ++i) {
    words[i] = 0;
  }
  for (int64_t k = 0; width > 0 && k < n; ++k) {
    const auto code = static_cast<uint32_t>(variable_code(x[k], codes, rounding, k));
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

// A message to be read.
struct VariableMessage {
  float step;
  const uint8_t* widths;  // Nibbles.
  const uint8_t* codes;
  int64_t code_bytes;  // That can be read from there on.
};

// Of bytes that may be anything; variable_layout(bits_per_element, n).bytes of them, n > 0.
inline VariableMessage variable_message(int bits_per_element, const uint8_t* bytes, int64_t n) {
  const VariableLayout layout = variable_layout(bits_per_element, n);
  return {scale_value(static_cast<uint16_t>(bytes[0] | bytes[1] << 8)), bytes + kStepBytes, bytes + layout.first_code,
          layout.code_bytes};
}

// Where a group's own scales are, behind the words of all its blocks, and where it ends.
struct GroupSize {
  int64_t words = 0;
  int64_t faint = 0;

  void add(uint32_t width) {
    words += width;
    faint += width == kFaintWidth ? 1 : 0;
  }
  int64_t bytes() const { return words * kWordBytes + faint; }

  // That of n elements from block `first` on.
  static GroupSize of(const uint8_t* widths, int64_t first, int64_t n) {
    GroupSize size;
    for (int64_t i = 0; i * kVariableBlock < n; ++i) {
      size.add(width_of_nibble(nibble_at(widths, first + i)));
    }
    return size;
  }
};

// Elements of the group that begins with block `first`, at byte `begin` of the codes, to out[0..n), n <=
// kVariableGroup. Where it would end behind the message it is NaN.
inline void decode_variable_group(const VariableMessage& message, int64_t first, int64_t begin, int64_t n, float* out) {
  const GroupSize size = GroupSize::of(message.widths, first, n);
  if (begin + size.bytes() > message.code_bytes) {
    for (int64_t k = 0; k < n; ++k) {
      out[k] = float_of_bits(kQuietNanBits);
    }
    return;
  }
  const uint8_t* words = message.codes + begin;
  const uint8_t* distance = words + size.words * kWordBytes;
  const StepCodes codes{message.step, 0, false};
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t width = width_of_nibble(nibble_at(message.widths, first + i / kVariableBlock));
    const float step = width == kFaintWidth ? codes.faint(*distance++).step : message.step;
    for (int64_t k = i; k < n && k < i + kVariableBlock; ++k) {
      out[k] = step * static_cast<float>(variable_code_at(words, width, k - i));
    }
    words += width * kWordBytes;
  }
}

// x[0..n), n <= kVariableGroup, whose widths are the nibbles from block `first` on, to bytes.
inline void encode_variable_group(const float* x, int64_t n, const StepCodes& step, const Rounding& rounding,
                                  const uint8_t* widths, int64_t first, uint8_t* bytes) {
  uint8_t* words = bytes;
  uint8_t* distance = bytes + GroupSize::of(widths, first, n).words * kWordBytes;
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t width = width_of_nibble(nibble_at(widths, first + i / kVariableBlock));
    const uint32_t largest = largest_of_block(x, n, i / kVariableBlock);
    if (width == kFaintWidth) {
      *distance++ = static_cast<uint8_t>(step.distance_of(step.own_scale(largest)));
    }
    encode_variable_block(x + i, n - i < kVariableBlock ? n - i : kVariableBlock, width, step.of_block(width, largest),
                          rounding.at(i), words);
    words += width * kWordBytes;
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
  const StepCodes codes = StepCodes::of(step, rounding.stochastic, bits_per_element);
  uint8_t* const widths = bytes + kStepBytes;
  for (int64_t i = 0; i < layout.blocks; ++i) {
    const uint32_t nibble = nibble_of_width(codes.width(largest_of_block(x, n, i)));
    widths[i / 2] = static_cast<uint8_t>(widths[i / 2] | nibble << (4 * (i % 2)));
  }
  uint8_t* to = bytes + layout.first_code;
  for (int64_t i = 0; i < n; i += kVariableGroup) {
    const int64_t elements = n - i < kVariableGroup ? n - i : kVariableGroup;
    const int64_t first = i / kVariableBlock;
    encode_variable_group(x + i, elements, codes, rounding.at(i), widths, first, to);
    to += GroupSize::of(widths, first, elements).bytes();
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
    decode_variable_group(message, i / kVariableBlock, begin, elements, out + i);
    begin += GroupSize::of(message.widths, i / kVariableBlock, elements).bytes();
  }
}

}  // namespace narrowcast::codec::wire
