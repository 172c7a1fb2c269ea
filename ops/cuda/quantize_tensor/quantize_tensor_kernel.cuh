// Conversion of floats to FP16 and BFP16 and back, with the arithmetic of the CPU. Tests compile this file for the CPU.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"
#include "ops/cuda/launch/rows.h"

namespace narrowcast::cuda {

// codec::encode_fp16 with the limit rounded to T, as PyTorch's clamp rounds its result. In bfloat16 the limit is 65536,
// which is Inf in binary16.
template <class T>
struct EncodeFp16 {
  NARROWCAST_HOST_DEVICE uint16_t operator()(T x) const {
    return codec::encode_fp16(static_cast<float>(x), static_cast<float>(static_cast<T>(codec::kFp16Max)));
  }
};

// codec::encode_bfp16.
template <class T>
struct EncodeBfp16 {
  NARROWCAST_HOST_DEVICE uint16_t operator()(T x) const { return codec::encode_bfp16(static_cast<float>(x)); }
};

// Encoding of rows.
template <class T, class Encode>
struct EncodeRows {
  static constexpr int64_t kPart = int64_t{256} * kBatch * kPackOf<T, uint16_t>;

  const T* x;
  uint16_t* codes;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    convert_part<kBatch>(x + part.first, part.size, codes + part.first, lane, Encode());
  }
};

// The value of an FP16 code.
struct DecodeFp16 {
  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return codec::decode_fp16(code); }
};

// The value of a BFP16 code.
struct DecodeBfp16 {
  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return codec::decode_bfp16(code); }
};

// Another decoder's value times `factor`: on CUDA, PyTorch divides by a number by multiplying by its reciprocal.
template <class Decode>
struct DecodeTimes {
  float factor;

  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return Decode()(code) * factor; }
};

// Decoding of rows.
template <class Decode>
struct DecodeRows {
  static constexpr int64_t kPart = int64_t{256} * kBatch * kPackOf<uint16_t, float>;

  const uint16_t* codes;
  Decode decode;
  float* decoded;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    convert_part<kBatch>(codes + part.first, part.size, decoded + part.first, lane, decode);
  }
};

}  // namespace narrowcast::cuda
