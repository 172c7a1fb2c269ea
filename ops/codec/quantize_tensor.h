// The arithmetic of FP16 and BFP16 on one element, shared by host and device, independent of LibTorch. For every value
// except NaN, bit for bit equal to PyTorch's torch/distributed/algorithms/_quantization/quantization.py and its encoder
// (torch/csrc/distributed/c10d/quantization). A NaN stays a NaN.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::codec {

// The greatest finite binary16; FP16 clamps to it.
inline constexpr float kFp16Max = 65504.0F;

// binary16 bits of x clamped to [-limit, limit] (65504 <= limit), rounded half to even; Inf from 65520 on. Every NaN
// becomes 0x7E00 with its sign.
NARROWCAST_HOST_DEVICE inline uint16_t encode_fp16(float x, float limit = kFp16Max) {
  const float clamped = x > limit ? limit : x < -limit ? -limit : x;
  const uint32_t sign = float_bits(clamped) >> 16 & 0x8000U;
  const uint32_t magnitude = float_bits(clamped) & 0x7FFFFFFFU;
  if (magnitude >= 0x477FF000U) {  // 65520 and more.
    return static_cast<uint16_t>(sign | (magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U));
  }
  if (magnitude < 0x38800000U) {  // Below 2^-14, where a unit is 2^-24, as it is in [0.5, 1) of float32.
    return static_cast<uint16_t>(sign | (float_bits(float_of_bits(magnitude) + 0.5F) - 0x3F000000U));
  }
  const uint32_t rounded = magnitude + 0x0FFFU + (magnitude >> 13 & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

// The value of binary16 bits.
NARROWCAST_HOST_DEVICE inline float decode_fp16(uint16_t code) {
  const uint32_t sign = (code & 0x8000U) << 16;
  const uint32_t magnitude = (code & 0x7FFFU) << 13;
  if (magnitude > 0x0F800000U) {
    return float_of_bits(sign | 0x7FC00000U | magnitude);
  }
  if (magnitude == 0x0F800000U) {
    return float_of_bits(sign | 0x7F800000U);
  }
  if (magnitude < 0x00800000U) {  // Subnormal in units of 2^-24; float32 has it as a normal number.
    return float_of_bits(sign | float_bits(static_cast<float>(code & 0x03FFU) * 0x1p-24F));
  }
  return float_of_bits(sign | (magnitude + 0x38000000U));
}

// The upper half of x's bits, rounded half away from zero; the greatest values become Inf. A NaN keeps its sign and its
// upper payload bits, and becomes quiet.
NARROWCAST_HOST_DEVICE inline uint16_t encode_bfp16(float x) {
  const uint32_t bits = float_bits(x);
  if (x != x) {
    return static_cast<uint16_t>(bits >> 16 | 0x0040U);
  }
  return static_cast<uint16_t>((bits + 0x8000U) >> 16);
}

// The float32 whose upper half is `code`.
NARROWCAST_HOST_DEVICE inline float decode_bfp16(uint16_t code) {
  return float_of_bits(static_cast<uint32_t>(code) << 16);
}

}  // namespace narrowcast::codec
