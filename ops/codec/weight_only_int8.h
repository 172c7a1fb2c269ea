// The arithmetic of symmetric per-channel quantisation on one element, shared by host and device, independent of
// LibTorch. Bit for bit equal to dynamically_quantize_per_channel of PyTorch's benchmarks/gpt_fast/quantize.py.
//
// T, the type of the tensor, is float or a 16-bit float type that converts to and from float; each step rounds to it.
// Compile users with FMA contraction off (-ffp-contract=off, nvcc -fmad=false).
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::codec {

// The codes in use: min < max. T represents both of them and every whole number between exactly.
struct CodeRange {
  int32_t min = -128;
  int32_t max = 127;
};

// The smallest scale of a channel.
inline constexpr float kSymmetricEps = 1.1920928955078125e-07F;  // 2^-23

// max(unbounded, 2^-23), rounded to T before and after; NaN stays.
template <class T>
NARROWCAST_HOST_DEVICE inline T bounded_symmetric_scale(float unbounded) {
  const auto scale = static_cast<T>(unbounded);
  return static_cast<float>(scale) < kSymmetricEps ? static_cast<T>(kSymmetricEps) : scale;
}

// scale = max(largest / ((codes.max - codes.min) / 2), 2^-23). `largest` is the channel's largest magnitude, or NaN if
// the channel contains one; NaN and Inf stay.
template <class T>
NARROWCAST_HOST_DEVICE inline T symmetric_scale(float largest, CodeRange codes) {
  return bounded_symmetric_scale<T>(largest / (static_cast<float>(codes.max - codes.min) / 2));
}

// The same as PyTorch computes it on CUDA, which replaces a division by a number by a multiplication by its reciprocal.
template <class T>
NARROWCAST_HOST_DEVICE inline T symmetric_scale_by_reciprocal(float largest, CodeRange codes) {
  const float reciprocal = 1.0F / (static_cast<float>(codes.max - codes.min) / 2);
  return bounded_symmetric_scale<T>(largest * reciprocal);
}

// clamp(round_half_even(quotient), codes.min, codes.max), the quotient rounded to T first; NaN gives 0.
template <class T>
NARROWCAST_HOST_DEVICE inline int32_t symmetric_code_of_quotient(float quotient, CodeRange codes) {
  const float whole = std::rint(static_cast<float>(static_cast<T>(quotient)));
  if (whole != whole) {
    return 0;
  }
  const auto min = static_cast<float>(codes.min);
  const auto max = static_cast<float>(codes.max);
  return static_cast<int32_t>(whole < min ? min : whole > max ? max : whole);
}

// The code of x / scale.
template <class T>
NARROWCAST_HOST_DEVICE inline int32_t symmetric_code(T x, T scale, CodeRange codes) {
  return symmetric_code_of_quotient<T>(static_cast<float>(x) / static_cast<float>(scale), codes);
}

}  // namespace narrowcast::codec
