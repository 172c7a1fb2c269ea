// Messages of integers whose width each block chooses, with a step for all of them: written and read one element after
// another. This is the definition; the kernels of ops/cpu/wire do the same many elements at a time.
// docs/wire_format.md describes the bytes.
//
// The least squared error for a number of bits is reached when all blocks have the same step and each as many bits as
// its largest number then needs (reverse water-filling: T. Cover and J. Thomas, "Elements of Information Theory",
// 10.3.3). So the encoder takes the least step with which the codes of all blocks fit the message, whose size is that
// of its number of elements alone. Bits are whole: what a block's leave free above its largest number a finer step of
// its own takes. Blocks below the step would be lost, which costs trainings more than their share of the error says:
// they are faint, with codes of -1, 0 and 1 and a step that may be far below. Compile users with FMA contraction off.
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
inline constexpr uint32_t kFaintWidth = 2;  // Of blocks with codes of -1, 0 and 1.
inline constexpr float kGreatestVariableCode = 16383;

// Steps are bfloat16. No inverse of one overflows, and the greatest leaves no block more than the codes of a faint one,
// so that some step fits always.
inline constexpr uint16_t kLeastStep = kLeastScaleBits >> 16;
inline constexpr uint16_t kGreatestStep = 0x7F7F;
inline constexpr uint32_t kGreatestMagnitudeBits = uint32_t{kGreatestStep} << 16;  // Beyond it a message is NaN.

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

// A block's header is a byte. Its lower half is the width, 0 of a block of zeros, or 1 of a faint block that is far
// below the step: a width of 1 could say 0 and -1, and is never needed. Its upper half says how far the block's own
// step is below that of the message, in parts of an octave; an octave is 2^23 in the bits of a float32.
inline constexpr uint32_t kFarFaint = 1;
inline constexpr int kFractionShift = 19;  // Of a sixteenth of an octave,
inline constexpr int kFaintShift = 21;     // and of a quarter, for faint blocks.
inline constexpr uint32_t kHeaderSteps = 16;
inline constexpr uint32_t kMostFraction = kHeaderSteps - 1;
inline constexpr uint32_t kMostFaint = 2 * kHeaderSteps - 1;

NARROWCAST_HOST_DEVICE constexpr uint32_t width_of_header(uint32_t header) {
  const uint32_t lower = header & 15U;
  return lower == kFarFaint ? kFaintWidth : lower;
}

// How far the block's step is below that of the message, in the bits of a float32.
NARROWCAST_HOST_DEVICE constexpr uint32_t distance_of_header(uint32_t header) {
  const uint32_t lower = header & 15U;
  const uint32_t upper = header >> 4;
  return lower > kFaintWidth ? upper << kFractionShift
                             : (upper + (lower == kFarFaint ? kHeaderSteps : 0U)) << kFaintShift;
}

// The step of a block. The message's and the header may be any; 0 is below all.
NARROWCAST_HOST_DEVICE inline float step_of_block(uint16_t step, uint32_t header) {
  const uint32_t bits = uint32_t{step} << 16;
  const uint32_t distance = distance_of_header(header);
  return float_of_bits(bits > distance ? bits - distance : 0U);
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

  // Whether the largest magnitude of a message, over the step, has a code.
  NARROWCAST_HOST_DEVICE bool has_code(float largest) const {
    return stochastic ? largest <= kGreatestVariableCode : largest < kGreatestVariableCode + 0.5F;
  }

  // Bits for the codes of a block whose largest magnitude has these bits, and over the step has_code().
  NARROWCAST_HOST_DEVICE uint32_t width(uint32_t largest) const {
    constexpr float kRounder = 0x1p23F;
    const float y = float_of_bits(largest) * inverse;
    const float code = stochastic ? std::ceil(y) : (y + kRounder) - kRounder;
    if (code >= 2) {
      return (float_bits(code) >> 23) - 125;  // 1 and the number of its digits.
    }
    return largest < least_faint ? 0 : kFaintWidth;
  }

  // How far below 2 to the number of a width's digits a number must be to have a code of that width; a 64th farther, so
  // that no rounding matters.
  NARROWCAST_HOST_DEVICE static float beyond_codes(bool stochastic) {
    return stochastic ? 1 + 0x1p-6F : 0.5F + 0x1p-6F;
  }

  // What the largest element of a block of that width may be over the block's step.
  NARROWCAST_HOST_DEVICE float most_of_step(uint32_t width) const {
    return float_of_bits((126 + width) << 23) - beyond_codes(stochastic);
  }

  // The header of such a block: the least step with which the largest element has a code of its width, or if none
  // below the message's does, that.
  NARROWCAST_HOST_DEVICE uint32_t header(uint32_t largest) const {
    const uint32_t digits = width(largest);
    if (digits == 0) {
      return 0;
    }
    const uint32_t bits = uint32_t{step} << 16;
    const uint32_t needed = float_bits(float_of_bits(largest) / most_of_step(digits));
    const uint32_t distance = bits > needed ? bits - needed : 0;
    if (digits > kFaintWidth) {
      const uint32_t sixteenths = distance >> kFractionShift;
      return digits | (sixteenths < kMostFraction ? sixteenths : kMostFraction) << 4;
    }
    const uint32_t quarters = distance >> kFaintShift;
    const uint32_t upper = quarters < most_faint() ? quarters : most_faint();
    return upper < kHeaderSteps ? kFaintWidth | upper << 4 : kFarFaint | (upper - kHeaderSteps) << 4;
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
    const StepCodes codes = StepCodes::of(step, stochastic);
    int64_t bytes = 0;
    bool fits = codes.has_code(float_of_bits(largest) * codes.inverse);
    for (int64_t i = 0; fits && i < layout.blocks; ++i) {
      bytes += codes.width(largest_of_block(x, n, i)) * kWordBytes;
      fits = bytes <= layout.code_bytes;
    }
    return fits;
  });
}

// The code of y, which is number i of what `rounding` begins with.
inline int32_t variable_code(float y, const Rounding& rounding, int64_t i) {
  return rounding.stochastic ? variable_code(y, random_word(rounding, i)) : variable_code(y);
}

// The `width` words of a block of n <= kVariableBlock elements, over whose step they are y = x * inverse.
inline void encode_variable_block(const float* x, int64_t n, uint32_t width, float inverse, const Rounding& rounding,
                                  uint8_t* words) {
  for (uint32_t i = 0; i < width * kWordBytes; ++i) {
    words[i] = 0;
  }
  for (int64_t k = 0; width > 0 && k < n; ++k) {
    const auto code = static_cast<uint32_t>(variable_code(x[k] * inverse, rounding, k));
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
    for (int64_t k = i; k < n && k < i + kVariableBlock; ++k) {
      out[k] =
          is_whole ? step * static_cast<float>(variable_code_at(words, width, k - i)) : float_of_bits(kQuietNanBits);
    }
    words += is_whole ? width * kWordBytes : 0;
  }
}

// x[0..n), n <= kVariableGroup, of a message with this step, to the codes of a group that has these headers.
inline void encode_variable_group(const float* x, int64_t n, uint16_t step, const uint8_t* headers,
                                  const Rounding& rounding, uint8_t* words) {
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t header = headers[i / kVariableBlock];
    const uint32_t width = width_of_header(header);
    encode_variable_block(x + i, n - i < kVariableBlock ? n - i : kVariableBlock, width,
                          1.0F / step_of_block(step, header), rounding.at(i), words);
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
  const StepCodes codes = StepCodes::of(step, rounding.stochastic);
  uint8_t* const headers = bytes + kStepBytes;
  for (int64_t i = 0; i < layout.blocks; ++i) {
    headers[i] = static_cast<uint8_t>(codes.header(largest_of_block(x, n, i)));
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
