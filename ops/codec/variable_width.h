// Messages of integers whose width each block chooses, in all of which one step holds: written and read one element
// after another. This is the definition; the kernels of ops/cpu/wire do the same many elements at a time.
// docs/wire_format.md describes the bytes.
//
// The least squared error for a number of bits is reached when all blocks have the same step and each as many bits as
// its largest number then needs (reverse water-filling: T. Cover and J. Thomas, "Elements of Information Theory",
// 10.3.3). So the encoder takes the least step with which the codes of all blocks fit the message, whose size is that
// of its number of elements alone. Compile users with FMA contraction off.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/wire_rounding.h"
#include "ops/codec/wire_scale.h"

namespace narrowcast::codec::wire {

inline constexpr int64_t kVariableBlock = 32;  // Elements that share a width; a plane of their bits is a word.
inline constexpr int64_t kStepBytes = 2;
inline constexpr int64_t kWordBytes = 4;
inline constexpr int64_t kLeastVariableBytes = 36;  // So that a message of one block has codes of 8 bits.
inline constexpr int kMostWidth = 16;
inline constexpr float kGreatestVariableCode = 32767;

// Steps are bfloat16. No inverse of one overflows, and the greatest makes codes of -1, 0 and 1 out of all magnitudes
// up to itself, so that some step fits always.
inline constexpr uint16_t kLeastStep = kLeastScaleBits >> 16;
inline constexpr uint16_t kGreatestStep = 0x7F7F;
inline constexpr uint32_t kGreatestMagnitudeBits = uint32_t{kGreatestStep} << 16;  // Beyond it a message is NaN.

// Where a message of n elements has what.
struct VariableLayout {
  int64_t blocks;      // The last one may be shorter.
  int64_t first_word;  // The byte where the codes begin, behind the step and the widths.
  int64_t words;       // That there are for codes.
  int64_t bytes;       // In all.
};

NARROWCAST_HOST_DEVICE constexpr VariableLayout variable_layout(int bits_per_element, int64_t n) {
  const int64_t blocks = (n + kVariableBlock - 1) / kVariableBlock;
  if (blocks == 0) {
    return {0, 0, 0, 0};
  }
  const int64_t wanted = blocks * bits_per_element * kVariableBlock / 8;
  const int64_t bytes = wanted < kLeastVariableBytes ? kLeastVariableBytes : wanted;
  const int64_t first_word = kStepBytes + (blocks + 1) / 2;
  return {blocks, first_word, (bytes - first_word) / kWordBytes, bytes};
}

// Widths travel as 4 bits: 0, or the width less one. A width of 1 could say 0 and -1, and is never needed.
NARROWCAST_HOST_DEVICE constexpr uint32_t width_of_nibble(uint32_t nibble) { return nibble == 0 ? 0 : nibble + 1; }
NARROWCAST_HOST_DEVICE constexpr uint32_t nibble_of_width(uint32_t width) { return width == 0 ? 0 : width - 1; }

// The nibble of block i of those that begin at `widths`.
NARROWCAST_HOST_DEVICE inline uint32_t nibble_at(const uint8_t* widths, int64_t i) {
  return uint32_t{widths[i / 2]} >> (4 * (i % 2)) & 15U;
}

// How numbers become codes. A number y is one already multiplied with the step's inverse.
struct StepCodes {
  float inverse;
  bool stochastic;

  // Whether the largest y of a message has a code.
  NARROWCAST_HOST_DEVICE bool has_code(float largest) const {
    return stochastic ? largest <= kGreatestVariableCode : largest < kGreatestVariableCode + 0.5F;
  }

  // Bits for the codes of a block whose largest magnitude is `largest`; has_code(largest * inverse).
  NARROWCAST_HOST_DEVICE uint32_t width(float largest) const {
    constexpr float kRounder = 0x1p23F;
    const float y = largest * inverse;
    const float code = stochastic ? std::ceil(y) : (y + kRounder) - kRounder;
    return code == 0 ? 0 : (float_bits(code) >> 23) - 125;  // 1 and the number of its digits.
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

// The bits of the largest magnitude of block i.
inline uint32_t largest_of_block(const float* x, int64_t n, int64_t i) {
  uint32_t largest = 0;
  for (int64_t k = i * kVariableBlock; k < n && k < (i + 1) * kVariableBlock; ++k) {
    largest = magnitude_bits(x[k]) > largest ? magnitude_bits(x[k]) : largest;
  }
  return largest;
}

// The step that a message of x has; kNanScale where a number is NaN, Inf or beyond the greatest bfloat16.
inline uint16_t variable_step(const float* x, int64_t n, const VariableLayout& layout, bool stochastic) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < layout.blocks; ++i) {
    largest = largest_of_block(x, n, i) > largest ? largest_of_block(x, n, i) : largest;
  }
  if (largest > kGreatestMagnitudeBits) {
    return kNanScale;
  }
  return least_step(kLeastStep, kGreatestStep, [&](uint16_t step) {
    const StepCodes codes{inverse_scale(step), stochastic};
    int64_t words = 0;
    bool fits = codes.has_code(float_of_bits(largest) * codes.inverse);
    for (int64_t i = 0; fits && i < layout.blocks; ++i) {
      words += codes.width(float_of_bits(largest_of_block(x, n, i)));
      fits = words <= layout.words;
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
  int64_t words;  // That can be read from there on.
};

// Of bytes that may be anything; variable_layout(bits_per_element, n).bytes of them, n > 0.
inline VariableMessage variable_message(int bits_per_element, const uint8_t* bytes, int64_t n) {
  const VariableLayout layout = variable_layout(bits_per_element, n);
  return {scale_value(static_cast<uint16_t>(bytes[0] | bytes[1] << 8)), bytes + kStepBytes, bytes + layout.first_word,
          layout.words};
}

// Elements of block i, whose first word is number `word`, to out[0..n), n <= kVariableBlock. Where its words would end
// behind the message it is NaN.
inline void decode_variable_block(const VariableMessage& message, int64_t i, int64_t word, int64_t n, float* out) {
  const uint32_t width = width_of_nibble(nibble_at(message.widths, i));
  const bool is_whole = word + width <= message.words;
  for (int64_t k = 0; k < n; ++k) {
    out[k] = is_whole ? message.step * static_cast<float>(variable_code_at(message.codes + word * kWordBytes, width, k))
                      : float_of_bits(kQuietNanBits);
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
  const uint16_t step = variable_step(x, n, layout, rounding.stochastic);
  bytes[0] = static_cast<uint8_t>(step);
  bytes[1] = static_cast<uint8_t>(step >> 8);
  if (step == kNanScale) {
    return;
  }
  const StepCodes codes{inverse_scale(step), rounding.stochastic};
  uint8_t* words = bytes + layout.first_word;
  for (int64_t i = 0; i < layout.blocks; ++i) {
    const int64_t first = i * kVariableBlock;
    const uint32_t width = codes.width(float_of_bits(largest_of_block(x, n, i)));
    uint8_t& pair = bytes[kStepBytes + i / 2];
    pair = static_cast<uint8_t>(pair | nibble_of_width(width) << (4 * (i % 2)));
    encode_variable_block(x + first, n - first < kVariableBlock ? n - first : kVariableBlock, width, codes,
                          rounding.at(first), words);
    words += width * kWordBytes;
  }
}

// variable_layout(bits_per_element, n).bytes of any content to out[0..n). Blocks whose words would end behind the
// message, and all behind them, are NaN.
inline void decode_variable(int bits_per_element, const uint8_t* bytes, int64_t n, float* out) {
  if (n == 0) {
    return;
  }
  const VariableMessage message = variable_message(bits_per_element, bytes, n);
  int64_t word = 0;
  for (int64_t first = 0; first < n; first += kVariableBlock) {
    const int64_t i = first / kVariableBlock;
    decode_variable_block(message, i, word, n - first < kVariableBlock ? n - first : kVariableBlock, out + first);
    word += width_of_nibble(nibble_at(message.widths, i));
  }
}

}  // namespace narrowcast::codec::wire
