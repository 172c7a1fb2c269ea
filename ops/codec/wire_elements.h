// The elements of messages: conversion between numbers and codes. The code encode(y) decodes to within the larger of
// kHalfStep and kRelativeHalfStep |y| of y. With a uniformly distributed word `random`, encode(y, random) rounds up
// with a probability that makes the expected value y. Compile users with FMA contraction off: every operation below
// rounds separately.
#pragma once

#include <cstdint>

#include <narrowcast/wire_formats.h>
#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"
#include "ops/codec/sparse_top.h"

namespace narrowcast::codec::wire {

// The elements of block formats: numbers already divided by their block's scale, y with |y| <= kGreatest up to a
// rounding error. The expected value is y to within 2^-24 of a step for integers, 2^-20 of the least step for E4M3.

// Whole numbers from -kGreatest to kGreatest in two's complement of kBits bits. The remaining pattern, the least number
// of that width, is never sent.
template <int kBitsPerCode>
struct SymmetricInt {
  static constexpr bool kIsVariable = false;
  static constexpr int kBits = kBitsPerCode;
  static constexpr float kGreatest = (1 << (kBits - 1)) - 1;
  static constexpr double kHalfStep = 0.5;
  static constexpr double kRelativeHalfStep = 0;
  static constexpr uint32_t kMask = (1U << kBits) - 1;
  static constexpr float kUnits = 0x1p24F;      // y with 24 binary places fits in an int32.
  static constexpr float kRounder = 0x1.8p23F;  // Adding it rounds half to even; the low bits are the whole number.

  NARROWCAST_HOST_DEVICE static uint32_t encode(float y) { return float_bits(y + kRounder) & kMask; }

  NARROWCAST_HOST_DEVICE static uint32_t encode(float y, uint32_t random) {
    const float clamped = y > kGreatest ? kGreatest : y < -kGreatest ? -kGreatest : y;
    const int32_t fixed = static_cast<int32_t>(clamped * kUnits) + static_cast<int32_t>(random >> 8);
    return static_cast<uint32_t>(fixed >> 24) & kMask;
  }

  NARROWCAST_HOST_DEVICE static float decode(uint32_t code) { return decode_field<0>(code); }

  // The value of the code in bits kFirst to kFirst + kBits - 1 of a word. The bits are used in place, as digits of a
  // float32 whose unit is bit kFirst; adding 2^(kBits - 1) makes the code positive.
  template <int kFirst>
  NARROWCAST_HOST_DEVICE static float decode_field(uint32_t word) {
    if constexpr (kFirst + kBits > kDigits) {
      return decode_field<kFirst - 16>(word >> 16);
    } else {
      constexpr uint32_t kSign = 1U << (kBits - 1);
      constexpr uint32_t kOne = 1U << (kDigits - kFirst);
      constexpr uint32_t kOneBits = uint32_t{127 + kDigits - kFirst} << kDigits;
      return float_of_bits((word & kMask << kFirst) ^ (kOneBits | kSign << kFirst)) - static_cast<float>(kOne + kSign);
    }
  }

 private:
  static constexpr int kDigits = 23;  // Binary places of a float32 after the first digit.
};

// FP8 E4M3 of the Open Compute Project (torch.float8_e4m3fn): sign, 4 bits of exponent with bias 7, 3 bits of mantissa.
// Subnormals are in units of 2^-9. There is no Inf; 0x7F and 0xFF are NaN, and never sent. Zero keeps its sign.
struct Float8E4M3 {
  static constexpr bool kIsVariable = false;
  static constexpr int kBits = 8;
  static constexpr float kGreatest = 448;
  static constexpr float kLeastNormal = 0x1p-6F;         // Numbers from here on have all their digits.
  static constexpr float kLeastStep = kLeastNormal / 8;  // The step of the subnormals.
  static constexpr double kHalfStep = kLeastStep / 2;
  static constexpr double kRelativeHalfStep = 0x1p-4;
  static constexpr int kCut = 20;                          // Bits of mantissa that float32 has and E4M3 has not.
  static constexpr uint32_t kOdd = 1U << kCut;             // The last bit that is kept.
  static constexpr uint32_t kRebias = 0x3C000000U;         // float32's bits minus this, without the last kCut, are
                                                           // E4M3's.
  static constexpr float kRounder = 0x1p23F * kLeastStep;  // A unit of its last place is kLeastStep.
  static constexpr float kUnits = kOdd / kLeastStep;       // Subnormals in these units have kCut binary places.
  static constexpr uint32_t kSign = 0x80U;
  static constexpr uint32_t kNan = 0x7FU;  // All bits except the sign.

  NARROWCAST_HOST_DEVICE static uint32_t encode(float y) {
    const uint32_t sign = float_bits(y) >> 24 & kSign;
    const uint32_t magnitude = magnitude_bits(y);
    if (float_of_bits(magnitude) < kLeastNormal) {
      return sign | (float_bits(float_of_bits(magnitude) + kRounder) - float_bits(kRounder));
    }
    return sign | (magnitude + (kOdd / 2 - 1) + (magnitude >> kCut & 1U) - kRebias) >> kCut;
  }

  NARROWCAST_HOST_DEVICE static uint32_t encode(float y, uint32_t random) {
    const uint32_t sign = float_bits(y) >> 24 & kSign;
    const float absolute = float_of_bits(magnitude_bits(y));
    const float magnitude = absolute > kGreatest ? kGreatest : absolute;
    const uint32_t fixed =
        magnitude < kLeastNormal ? static_cast<uint32_t>(magnitude * kUnits) : float_bits(magnitude) - kRebias;
    return sign | (fixed + (random >> (32 - kCut))) >> kCut;
  }

  NARROWCAST_HOST_DEVICE static float decode(uint32_t code) {
    const uint32_t magnitude = code & kNan;
    if (magnitude == kNan) {
      return float_of_bits(kQuietNanBits);
    }
    const float normal = float_of_bits((magnitude << kCut) + kRebias);
    const float value = normal < kLeastNormal ? normal + normal - kLeastNormal : normal;
    return float_of_bits(float_bits(value) | (code & kSign) << 24);
  }

  template <int kFirst>
  NARROWCAST_HOST_DEVICE static float decode_field(uint32_t word) {
    return decode(word >> kFirst & 0xFFU);
  }
};

// Integers with as many bits as each block needs, kBitsPerElement on average (ops/codec/variable_width.h).
template <int kBitsPerElement>
struct VariableInt {
  static constexpr bool kIsVariable = true;
  static constexpr int kBits = kBitsPerElement;
};

// The largest kKeptPerMille per mille of a block (ops/codec/sparse_top.h).
template <int kKeptPerMille>
struct TopElements {
  static constexpr bool kIsVariable = false;
  static constexpr int kPerMille = kKeptPerMille;
  static constexpr int kBits = kSparseCodeBits;
};

// The elements of formats without blocks. Every NaN becomes the quiet, positive one; Inf stays. The expected value is
// the number, except for subnormals of binary16, where it is off by at most 2^-13 of the least step. kHalfStep is half
// the step of the subnormals.

// The upper half of float32: the same range, 8 significant bits. From halfway between the greatest number and 2^128 on,
// numbers become Inf.
struct Bfloat16 {
  static constexpr bool kIsVariable = false;
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

// IEEE 754 binary16: 11 significant bits, 6e-8 to 65504. Numbers from 65520 on become Inf (with stochastic rounding
// some above 65504), so that an overflow is visible and never silently becomes the greatest number.
struct Binary16 {
  static constexpr bool kIsVariable = false;
  using Code = uint16_t;
  static constexpr double kHalfStep = 0x1p-25;
  static constexpr double kRelativeHalfStep = 0x1p-11;
  static constexpr float kUnits = 0x1p37F;              // Subnormals in these units have 13 binary places.
  static constexpr uint32_t kNormalBits = 0x38800000U;  // 2^-14; numbers from here on have all their digits.
  static constexpr uint32_t kRebias = 0x38000000U;      // float32's exponent minus this, shifted right by 13, is
                                                        // binary16's.
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
        magnitude < kNormalBits ? static_cast<uint32_t>(float_of_bits(magnitude) * kUnits) : magnitude - kRebias;
    const uint32_t code = (fixed + (random >> 19)) >> 13;
    return static_cast<Code>((float_bits(x) >> 16 & 0x8000U) | (code < kInf ? code : kInf));
  }

  NARROWCAST_HOST_DEVICE static float decode(Code code) { return decode_fp16(code); }
};

// float32 itself, without rounding.
struct Binary32 {
  static constexpr bool kIsVariable = false;
  using Code = uint32_t;
  static constexpr double kHalfStep = 0;
  static constexpr double kRelativeHalfStep = 0;

  NARROWCAST_HOST_DEVICE static Code encode(float x) { return x != x ? kQuietNanBits : float_bits(x); }
  NARROWCAST_HOST_DEVICE static Code encode(float x, uint32_t) { return encode(x); }
  NARROWCAST_HOST_DEVICE static float decode(Code code) { return float_of_bits(code); }
};

// A value of the element's type.
template <WireElement kElement>
constexpr auto element_of() {
  if constexpr (kElement == WireElement::kInt8) {
    return SymmetricInt<8>();
  } else if constexpr (kElement == WireElement::kInt6) {
    return SymmetricInt<6>();
  } else if constexpr (kElement == WireElement::kInt4) {
    return SymmetricInt<4>();
  } else if constexpr (kElement == WireElement::kFp8E4M3) {
    return Float8E4M3();
  } else if constexpr (kElement == WireElement::kVariable6) {
    return VariableInt<6>();
  } else if constexpr (kElement == WireElement::kVariable5) {
    return VariableInt<5>();
  } else if constexpr (kElement == WireElement::kVariable4) {
    return VariableInt<4>();
  } else if constexpr (kElement == WireElement::kVariable3) {
    return VariableInt<3>();
  } else if constexpr (kElement == WireElement::kTopOf15) {
    return TopElements<15>();
  } else if constexpr (kElement == WireElement::kTopOf31) {
    return TopElements<31>();
  } else if constexpr (kElement == WireElement::kBfloat16) {
    return Bfloat16();
  } else if constexpr (kElement == WireElement::kBinary16) {
    return Binary16();
  } else {
    static_assert(kElement == WireElement::kBinary32, "each WireElement has its type here");
    return Binary32();
  }
}

}  // namespace narrowcast::codec::wire
