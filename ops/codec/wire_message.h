// Messages, encoded and decoded one element at a time: the definition of the bytes. The kernels of ops/cpu/wire give
// the same bytes many elements at a time, and use this code where they have no vectors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/sparse_top.h"
#include "ops/codec/variable_width.h"
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/codec/wire_scale.h"

namespace narrowcast::codec::wire {

// y as a code of an Element; y is element i counted from the position of `rounding`.
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

// Code i of `count`, with all other bits 0.
template <int kBits>
uint32_t get_code(const uint8_t* codes, int64_t i, int64_t count) {
  const int64_t byte = i * kBits / 8;
  const uint32_t low = codes[byte];
  const uint32_t high = byte + 1 < (count * kBits + 7) / 8 ? codes[byte + 1] : 0;
  return (low | high << 8) >> (i * kBits % 8) & ((1U << kBits) - 1);
}

// The largest of the bits of the magnitudes.
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

// Messages of formats that can be split, block by block.
template <class Format>
void encode_blocks(const float* x, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  for (int64_t i = 0; i < n; i += Format::kBlock) {
    uint8_t* const block = bytes + i / Format::kBlock * Format::kBlockBytes;
    if constexpr (Format::kHasBlocks) {
      encode_block<Format>(x + i, n - i < Format::kBlock ? n - i : Format::kBlock, rounding.at(i), block);
    } else {
      encode_number<Format>(x[i], rounding.at(i), block);
    }
  }
}

template <class Format>
void decode_blocks(const uint8_t* bytes, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += Format::kBlock) {
    const uint8_t* const block = bytes + i / Format::kBlock * Format::kBlockBytes;
    if constexpr (Format::kHasBlocks) {
      decode_block<Format>(block, n - i < Format::kBlock ? n - i : Format::kBlock, out + i);
    } else {
      out[i] = decode_number<Format>(block);
    }
  }
}

// Encodes x[0..n) to encoded_size<Format>(n) bytes.
template <class Format>
void encode(const float* x, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  if constexpr (Format::kIsSparse) {
    encode_sparse(Format::kPerMille, x, n, bytes);
  } else if constexpr (Format::kIsVariable) {
    encode_variable(Format::kBits, x, n, rounding, bytes);
  } else {
    encode_blocks<Format>(x, n, rounding, bytes);
  }
}

// Decodes encoded_size<Format>(n) bytes to out[0..n).
template <class Format>
void decode(const uint8_t* bytes, int64_t n, float* out) {
  if constexpr (Format::kIsSparse) {
    decode_sparse(Format::kPerMille, bytes, n, out);
  } else if constexpr (Format::kIsVariable) {
    decode_variable(Format::kBits, bytes, n, out);
  } else {
    decode_blocks<Format>(bytes, n, out);
  }
}

}  // namespace narrowcast::codec::wire
