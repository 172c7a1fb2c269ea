// The arithmetic of affine uint8 quantisation on one element, shared by host and device, independent of LibTorch. Bit
// for bit equal to PyTorch's MinMaxObserver (torch/ao/quantization/observer.py: quint8, 0..255, eps 2^-23) and the
// backend functions of its quantization_hooks.py.
//
// Compile users with FMA contraction off (-ffp-contract=off, nvcc -fmad=false): every operation below rounds
// separately.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/codec/host_device.h"

namespace narrowcast::codec {

// The mapping of floats to codes: x is about scale * (code - zero_point).
struct AffineQparams {
  float scale = 1;
  int32_t zero_point = 0;  // In [0, 255]: the code of 0.
};

// The least and the greatest value seen, in float32 as in the observers. It starts at zero because 0 must have a code.
// A NaN stays.
struct AffineRange {
  float min = 0;
  float max = 0;
};

// The codes are 0 to kAffineGreatestCode.
inline constexpr float kAffineGreatestCode = 255;

// The smallest scale; a range below 255 times this value loses resolution.
inline constexpr float kAffineEps = 1.1920928955078125e-07F;  // 2^-23

// The range of both parts; NaN if either contains a NaN.
NARROWCAST_HOST_DEVICE inline AffineRange merge(AffineRange a, AffineRange b) {
  return {b.min < a.min || b.min != b.min ? b.min : a.min, b.max > a.max || b.max != b.max ? b.max : a.max};
}

// The qparams of a range with this scale, or with 2^-23 if it is smaller: zero_point = clamp(0 - round_half_even(min /
// scale), 0, 255), and 0 if that is NaN.
NARROWCAST_HOST_DEVICE inline AffineQparams qparams_of_scale(AffineRange range, float scale) {
  if (scale < kAffineEps) {  // False for NaN, which stays.
    scale = kAffineEps;
  }
  const float steps = -std::rint(range.min / scale);
  if (!(steps > 0)) {  // No negative value, or NaN.
    return {scale, 0};
  }
  return {scale, static_cast<int32_t>(steps < kAffineGreatestCode ? steps : kAffineGreatestCode)};
}

// scale = max((max - min) / 255, 2^-23), zero_point = clamp(0 - round_half_even(min / scale), 0, 255).
// A range with Inf or NaN, or one that overflows: scale Inf or NaN, zero point 0.
NARROWCAST_HOST_DEVICE inline AffineQparams choose_qparams(AffineRange range) {
  return qparams_of_scale(range, (range.max - range.min) / kAffineGreatestCode);
}

// The same as PyTorch computes it on CUDA, which replaces a division by a number by a multiplication by its reciprocal.
NARROWCAST_HOST_DEVICE inline AffineQparams choose_qparams_by_reciprocal(AffineRange range) {
  return qparams_of_scale(range, (range.max - range.min) * (1.0F / kAffineGreatestCode));
}

// clamp(round_half_even(x / scale) + zero_point, 0, 255). The quotient and the sum are rounded to T: float, double, or
// a 16-bit float type that converts to and from float. NaN gives 0.
template <class T>
NARROWCAST_HOST_DEVICE inline uint8_t quantize(T x, AffineQparams qparams) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto quotient = static_cast<T>(static_cast<Wide>(x) / static_cast<Wide>(qparams.scale));
  const Wide rounded = std::rint(static_cast<Wide>(quotient));
  const auto code = static_cast<Wide>(static_cast<T>(rounded + static_cast<Wide>(qparams.zero_point)));
  if (!(code > 0)) {
    return 0;
  }
  return static_cast<uint8_t>(code < kAffineGreatestCode ? code : kAffineGreatestCode);
}

// scale * (float(code) - float(zero_point)).
NARROWCAST_HOST_DEVICE inline float dequantize(uint8_t code, AffineQparams qparams) {
  return qparams.scale * (static_cast<float>(code) - static_cast<float>(qparams.zero_point));
}

}  // namespace narrowcast::codec
