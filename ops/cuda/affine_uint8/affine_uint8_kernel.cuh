// Affine uint8 on CUDA: the range of a channel and its qparams, quantisation and dequantisation. Tests compile this
// file for the CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/codec/affine_uint8.h"
#include "ops/codec/host_device.h"
#include "ops/cuda/affine_uint8/affine_uint8.h"
#include "ops/cuda/launch/rows.h"

namespace narrowcast::cuda {

// The least and the greatest of 0 and the values seen. Floats are compared as integers: among values with the sign bit
// clear, the greatest value has the greatest signed bits. Among values with it set, the least value has the greatest
// unsigned bits. A NaN exceeds all other values of its sign. So two integer maxima per value also detect NaN.
struct RangeBits {
  uint32_t least = 0;
  int32_t greatest = 0;

  NARROWCAST_HOST_DEVICE void add(float value) {
    const uint32_t bits = codec::float_bits(value);
    const auto signed_bits = static_cast<int32_t>(bits);
    least = bits > least ? bits : least;
    greatest = signed_bits > greatest ? signed_bits : greatest;
  }

  // If one end is NaN, both are.
  NARROWCAST_HOST_DEVICE codec::AffineRange range() const {
    // If no value has its sign bit set, the greatest unsigned bits belong to a positive value.
    const float min = (least & codec::kSignBit) == 0 ? 0.0F : codec::float_of_bits(least);
    const float max = codec::float_of_bits(static_cast<uint32_t>(greatest));
    return {max != max ? max : min, min != min ? min : max};
  }
};

NARROWCAST_HOST_DEVICE inline RangeBits merge(RangeBits a, RangeBits b) {
  return {a.least > b.least ? a.least : b.least, a.greatest > b.greatest ? a.greatest : b.greatest};
}

// Writes the qparams of a channel's range, as PyTorch's observers compute them on CUDA.
struct StoreQparams {
  QparamsOut out;

  NARROWCAST_HOST_DEVICE void operator()(int64_t channel, const RangeBits& bits) const {
    out.store(channel, codec::choose_qparams_by_reciprocal(bits.range()));
  }
};

// codec::quantize for any scale.
template <class T>
struct QuantizeByDivision {
  codec::AffineQparams qparams;

  NARROWCAST_HOST_DEVICE uint8_t operator()(T x) const { return codec::quantize(x, qparams); }
};

// codec::quantize for a scale with ReciprocalDivision::is_moderate() and a T with at most float's precision, in half
// the instructions. It adds whole numbers as integers; if their sum is a code, T represents it exactly.
template <class T>
class QuantizeByReciprocal {
 public:
  NARROWCAST_HOST_DEVICE explicit QuantizeByReciprocal(codec::AffineQparams qparams)
      : division_(qparams.scale), offset_(qparams.zero_point - kBitsOfRounder) {}

  NARROWCAST_HOST_DEVICE uint8_t operator()(T x) const {
    const auto quotient = static_cast<float>(static_cast<T>(division_.quotient(static_cast<float>(x))));
    const float near = std::fmin(std::fmax(quotient, -1024.0F), 1024.0F);  // NaN becomes -1024, whose code is 0.
    const auto bits = static_cast<int32_t>(codec::float_bits(near + kRounder));
    const int32_t code = bits + offset_;
    return static_cast<uint8_t>(code < 0 ? 0 : code > kGreatestCode ? kGreatestCode : code);
  }

 private:
  // Float32 has no fractions at 1.5 * 2^23: adding this number rounds to a whole number, half to even, which is then in
  // the lowest bits.
  static constexpr float kRounder = 0x1.8p23F;
  static constexpr int32_t kBitsOfRounder = 0x4B400000;
  static constexpr auto kGreatestCode = static_cast<int32_t>(codec::kAffineGreatestCode);

  codec::ReciprocalDivision division_;
  int32_t offset_;
};

// Quantises this lane's share of x[0..n) as PyTorch's hooks do on CUDA: the scale is rounded to x's dtype before x is
// divided by it. The CPU divides by the float32 scale.
template <class T>
NARROWCAST_HOST_DEVICE inline void quantize_share(const T* x, int n, codec::AffineQparams qparams, uint8_t* codes,
                                                  Lane lane) {
  if constexpr (!std::is_same_v<T, double>) {
    qparams.scale = static_cast<float>(static_cast<T>(qparams.scale));
    if (codec::ReciprocalDivision::is_moderate(qparams.scale)) {
      convert_part<kBatch>(x, n, codes, lane, QuantizeByReciprocal<T>(qparams));
      return;
    }
  }
  convert_part<1>(x, n, codes, lane, QuantizeByDivision<T>{qparams});
}

// Quantisation of rows.
template <class T>
struct QuantizeRows {
  static constexpr int64_t kPart = int64_t{256} * kBatch * kPackOf<T, uint8_t>;

  const T* x;
  QparamsIn qparams;  // of each row
  uint8_t* codes;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    quantize_share(x + part.first, part.size, qparams.at(part.row), codes + part.first, lane);
  }
};

// codec::dequantize for a channel's qparams.
struct DequantizeCode {
  codec::AffineQparams qparams;

  NARROWCAST_HOST_DEVICE float operator()(uint8_t code) const { return codec::dequantize(code, qparams); }
};

// Dequantisation of rows.
struct DequantizeRows {
  static constexpr int64_t kPart = int64_t{256} * kBatch * kPackOf<uint8_t, float>;

  const uint8_t* codes;
  QparamsIn qparams;  // of each row
  float* decoded;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    convert_part<kBatch>(codes + part.first, part.size, decoded + part.first, lane,
                         DequantizeCode{qparams.at(part.row)});
  }
};

}  // namespace narrowcast::cuda
