// Messages of integers whose width each block chooses, with one step for the whole message: encoded and decoded one
// element at a time. This code is the definition; the kernels of ops/cpu/variable give the same results many elements
// at a time. docs/reference/wire-format.md describes the bytes.
//
// For a number of bits, the squared error is least if all blocks have the same step and each block has as many bits as
// its largest number then needs (reverse water-filling: T. Cover and J. Thomas, "Elements of Information Theory",
// 10.3.3). So the encoder takes the least step with which the codes of all blocks fit the message. The size of the
// message depends only on the number of elements.
//
// - Widths are whole bits. A block uses the rest of its last bit by having its own, finer step.
// - The codes of a block cover its numbers on both sides of 0 as closely as the sign of its step and a zero point
//   permit. Without them, a block whose largest numbers have one sign would leave codes of the other sign unused.
// - Blocks below the step would become zeros, which costs trainings more than their share of the error suggests. They
//   are faint blocks instead, with codes of 2 bits and a step that may be far below the message's.
//
// Compile users with FMA contraction off.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/variable_headers.h"
#include "ops/codec/wire_rounding.h"
#include "ops/codec/wire_scale.h"

namespace narrowcast::codec::wire {

// The nearest code, ties to even.
NARROWCAST_HOST_DEVICE inline int32_t variable_code(float y) {
  constexpr float kRounder = 0x1.8p23F;  // The low bits of the sum are the whole number.
  return static_cast<int32_t>(float_bits(y + kRounder)) - static_cast<int32_t>(float_bits(kRounder));
}

// The code below or above, chosen at random: the expected value is y to within 2^-24.
NARROWCAST_HOST_DEVICE inline int32_t variable_code(float y, uint32_t random) {
  const float below = std::floor(y);
  const auto fraction = static_cast<int32_t>((y - below) * 0x1p24F) + static_cast<int32_t>(random >> 8);
  return static_cast<int32_t>(below) + (fraction >> 24);
}

// The least bfloat16 bit pattern in [low, high] for which fits() is true. fits() must be true for `high`, and for every
// pattern above one for which it is true. It is called about log2(high - low) times; a call visits all elements.
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

// The step of a message of x; kNanScale if a magnitude is above the greatest, or NaN.
inline uint16_t variable_step(int bits_per_element, const float* x, int64_t n, const Rounding& rounding) {
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
    const StepCodes codes = StepCodes::of(step, rounding);
    int64_t bytes = 0;
    bool fits = codes.has_code(float_of_bits(largest) * codes.inverse);
    for (int64_t i = 0; fits && i < layout.blocks; ++i) {
      bytes += codes.width(extent_of_block(x, n, i)) * kWordBytes;
      fits = bytes <= layout.code_bytes;
    }
    return fits;
  });
}

// The code of y, element i counted from the position of `rounding`.
inline int32_t variable_code(float y, const Rounding& rounding, int64_t i) {
  return rounding.stochastic ? variable_code(y, random_word(rounding, i)) : variable_code(y);
}

// The header of a block, and the step of its message.
struct BlockHeader {
  uint16_t step;
  uint32_t header;
};

// The words of a block of n <= kVariableBlock elements. The codes after the last element are 0.
inline void encode_variable_block(const float* x, int64_t n, const BlockHeader& of, const Rounding& rounding,
                                  uint8_t* words) {
  const uint32_t width = width_of_header(of.header);
  const float inverse = 1.0F / step_of_block(of.step, of.header);
  for (uint32_t i = 0; i < width * kWordBytes; ++i) {
    words[i] = 0;
  }
  for (int64_t k = 0; width > 0 && k < kVariableBlock; ++k) {
    const int32_t from_zero = k < n ? variable_code(x[k] * inverse, rounding, k) : 0;
    const auto code = static_cast<uint32_t>(from_zero + zero_point_of_header(of.header));
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
    code = code << 1 | (plane == 0 ? 0U - bit : bit);  // The first plane holds the signs.
  }
  return static_cast<int32_t>(code);
}

// A message to be decoded.
struct VariableMessage {
  uint16_t step;
  const uint8_t* headers;
  const uint8_t* codes;
  int64_t code_bytes;  // Bytes that can be read from `codes` on.
};

// `bytes` are variable_layout(bits_per_element, n).bytes of any content; n > 0.
inline VariableMessage variable_message(int bits_per_element, const uint8_t* bytes, int64_t n) {
  const VariableLayout layout = variable_layout(bits_per_element, n);
  return {step_of_message(bytes), bytes + kStepBytes, bytes + layout.first_code, layout.code_bytes};
}

// Decodes a group with these headers, whose codes start at byte `begin` of the codes, to out[0..n), n <=
// kVariableGroup. NaN if the group would end beyond the message.
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

// The headers of a group's blocks, and the step of its message.
struct GroupHeaders {
  uint16_t step;
  const uint8_t* headers;
};

// Encodes x[0..n), n <= kVariableGroup, as the codes of a group with these headers.
inline void encode_variable_group(const float* x, int64_t n, const GroupHeaders& of, const Rounding& rounding,
                                  uint8_t* words) {
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const BlockHeader of_block{of.step, of.headers[i / kVariableBlock]};
    encode_variable_block(x + i, n - i < kVariableBlock ? n - i : kVariableBlock, of_block, rounding.at(i), words);
    words += width_of_header(of_block.header) * kWordBytes;
  }
}

// Encodes x[0..n) to variable_layout(bits_per_element, n).bytes.
inline void encode_variable(int bits_per_element, const float* x, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  const VariableLayout layout = variable_layout(bits_per_element, n);
  for (int64_t i = 0; i < layout.bytes; ++i) {
    bytes[i] = 0;
  }
  if (n == 0) {
    return;
  }
  const uint16_t step = variable_step(bits_per_element, x, n, rounding);
  bytes[0] = static_cast<uint8_t>(step);
  bytes[1] = static_cast<uint8_t>(step >> 8);
  if (step == kNanScale) {
    return;
  }
  const StepCodes codes = StepCodes::of(step, rounding);
  uint8_t* const headers = bytes + kStepBytes;
  for (int64_t i = 0; i < layout.blocks; ++i) {
    headers[i] = static_cast<uint8_t>(codes.header(extent_of_block(x, n, i)));
  }
  uint8_t* to = bytes + layout.first_code;
  for (int64_t i = 0; i < n; i += kVariableGroup) {
    const int64_t elements = n - i < kVariableGroup ? n - i : kVariableGroup;
    const uint8_t* const of_group = headers + i / kVariableBlock;
    encode_variable_group(x + i, elements, {step, of_group}, rounding.at(i), to);
    to += bytes_of_headers(of_group, blocks_of(elements));
  }
}

// Decodes variable_layout(bits_per_element, n).bytes of any content to out[0..n). A group that would end beyond the
// message is NaN, as are all groups after it.
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
