// The elements of formats without blocks: bfloat16, binary16 and float32. Every
// NaN becomes the quiet, positive one; Inf stays. `random` as in block_elements.h,
// here exact but for subnormals of binary16 (2^-13 of the least step), and half
// steps too, here of the number itself: kHalfStep is that of the subnormals.
#pragma once

#include <cstdint>

#include "ops/codec/float_bits.h"
#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"

namespace narrowcast::codec::wire {

// The upper half of float32: all of its range, 8 significant bits. From halfway to 2^128 on numbers become Inf.
struct Bfloat16 {
  using Code = uint16_t;
  static constexpr double kHalfStep = 0x1p-134;
  static constexpr double kRelativeHalfStep = 0x1p-8;

  NARROWCAST_HOST_DEVICE static Code encode(float x) {
    const uint32_t bits = float_bits(x);
    return static_cast<Code>(x != x ? kQuietNanBits >> 16 : (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
  }

  NARROWCAST_HOST_DEVICE static Code encode(float x, uint32_t random) {
    const uint32_t bits = float_bits(x);
    return (bits & ~kSignBit) >= kInfBits ? encode(x) : static_cast<Code>((bits + (random >> 16)) >> 16);
  }

  NARROWCAST_HOST_DEVICE static float decode(Code code) { return decode_bfp16(code); }
};

// IEEE 754 binary16: 11 significant bits, 6e-8 to 65504. From 65520 on numbers become Inf (at random above 65504):
// an overflow shows, and is never silently the greatest number.
struct Binary16 {
  using Code = uint16_t;
  static constexpr double kHalfStep = 0x1p-25;
  static constexpr double kRelativeHalfStep = 0x1p-11;
  static constexpr uint32_t kNormalBits = 0x38800000U;  // 2^-14, from where on numbers have all their digits.
  static constexpr uint32_t kRebias = 0x38000000U;      // float32's exponent less this, down 13 bits, is binary16's.
  static constexpr uint32_t kInf = 0x7C00U;
  static constexpr uint32_t kNan = 0x7E00U;

  NARROWCAST_HOST_DEVICE static Code encode(float x) {
    return static_cast<Code>(x != x ? kNan : encode_fp16(x, float_of_bits(kInfBits)));
  }

  NARROWCAST_HOST_DEVICE static Code encode(float x, uint32_t random) {
    const uint32_t magnitude = magnitude_bits(x);
    if (magnitude >= kInfBits) {
      return encode(x);
    }
    const uint32_t fixed =
        magnitude < kNormalBits ? static_cast<uint32_t>(float_of_bits(magnitude) * 0x1p37F) : magnitude - kRebias;
    const uint32_t code = (fixed + (random >> 19)) >> 13;
    return static_cast<Code>((float_bits(x) >> 16 & 0x8000U) | (code < kInf ? code : kInf));
  }

  NARROWCAST_HOST_DEVICE static float decode(Code code) { return decode_fp16(code); }
};

// float32 itself. Nothing is rounded.
struct Binary32 {
  using Code = uint32_t;
  static constexpr double kHalfStep = 0;
  static constexpr double kRelativeHalfStep = 0;

  NARROWCAST_HOST_DEVICE static Code encode(float x) { return x != x ? kQuietNanBits : float_bits(x); }
  NARROWCAST_HOST_DEVICE static Code encode(float x, uint32_t) { return encode(x); }
  NARROWCAST_HOST_DEVICE static float decode(Code code) { return float_of_bits(code); }
};

}  // namespace narrowcast::codec::wire
