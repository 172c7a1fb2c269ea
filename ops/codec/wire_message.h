// Messages, written and read one element after another: what the bytes are. The kernels of ops/cpu/wire do the same
// many elements at a time, and where they have no vectors, this.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"

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

// y as a code of an Element, where y is number i of what `rounding` begins with.
template <class Element>
uint32_t encode_element(float y, const Rounding& rounding, int64_t i) {
  return rounding.stochastic ? Element::encode(y, random_word(rounding, i)) : Element::encode(y);
}

// The codes of a block are one number of many bits, code i at bit i * kBits.
template <int kBits>
void put_code(uint8_t* codes, int64_t i, uint32_t code) {
  const uint32_t shifted = code << (i * kBits % 8);
  uint8_t* const first = codes + i * kBits / 8;
  first[0] = static_cast<uint8_t>(first[0] | shifted);
  if (shifted > 0xFFU) {
    first[1] = static_cast<uint8_t>(first[1] | shifted >> 8);
  }
}

// Code i of `count`, all other bits 0.
template <int kBits>
uint32_t get_code(const uint8_t* codes, int64_t i, int64_t count) {
  const int64_t byte = i * kBits / 8;
  const uint32_t low = codes[byte];
  const uint32_t high = byte + 1 < (count * kBits + 7) / 8 ? codes[byte + 1] : 0;
  return (low | high << 8) >> (i * kBits % 8) & ((1U << kBits) - 1);
}

// The largest of the magnitudes' bits.
inline uint32_t largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = magnitude_bits(x[i]) > largest ? magnitude_bits(x[i]) : largest;
  }
  return largest;
}

// One block of n <= kBlock elements.
template <class Format>
void encode_block(const float* x, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  using Element = typename Format::Element;
  const uint16_t scale = block_scale(largest_magnitude(x, n), Element::kGreatest);
  std::fill_n(bytes, encoded_size<Format>(n), uint8_t{0});
  bytes[0] = static_cast<uint8_t>(scale);
  bytes[1] = static_cast<uint8_t>(scale >> 8);
  if (scale == kNanScale) {
    return;
  }
  const float inverse = inverse_scale(scale);
  for (int64_t i = 0; i < n; ++i) {
    put_code<Format::kBits>(bytes + kScaleBytes, i, encode_element<Element>(x[i] * inverse, rounding, i));
  }
}

template <class Format>
void decode_block(const uint8_t* bytes, int64_t n, float* out) {
  const float scale = scale_value(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
  for (int64_t i = 0; i < n; ++i) {
    out[i] = scale * Format::Element::decode(get_code<Format::kBits>(bytes + kScaleBytes, i, n));
  }
}

// One element of a float format.
template <class Format>
void encode_number(float x, const Rounding& rounding, uint8_t* bytes) {
  const uint32_t code = encode_element<typename Format::Element>(x, rounding, 0);
  for (int64_t byte = 0; byte < Format::kBlockBytes; ++byte) {
    bytes[byte] = static_cast<uint8_t>(code >> (8 * byte));
  }
}

template <class Format>
float decode_number(const uint8_t* bytes) {
  uint32_t code = 0;
  for (int64_t byte = 0; byte < Format::kBlockBytes; ++byte) {
    code |= uint32_t{bytes[byte]} << (8 * byte);
  }
  return Format::Element::decode(static_cast<typename Format::Element::Code>(code));
}

// x[0..n) to encoded_size<Format>(n) bytes.
template <class Format>
void encode(const float* x, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  for (int64_t i = 0; i < n; i += Format::kBlock) {
    uint8_t* const block = bytes + i / Format::kBlock * Format::kBlockBytes;
    if constexpr (Format::kHasBlocks) {
      encode_block<Format>(x + i, n - i < Format::kBlock ? n - i : Format::kBlock, rounding.at(i), block);
    } else {
      encode_number<Format>(x[i], rounding.at(i), block);
    }
  }
}

// encoded_size<Format>(n) bytes to out[0..n).
template <class Format>
void decode(const uint8_t* bytes, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += Format::kBlock) {
    const uint8_t* const block = bytes + i / Format::kBlock * Format::kBlockBytes;
    if constexpr (Format::kHasBlocks) {
      decode_block<Format>(block, n - i < Format::kBlock ? n - i : Format::kBlock, out + i);
    } else {
      out[i] = decode_number<Format>(block);
    }
  }
}

}  // namespace narrowcast::codec::wire
