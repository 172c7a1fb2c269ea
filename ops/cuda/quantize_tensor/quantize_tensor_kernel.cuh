// Floats to FP16 and BFP16, with the arithmetic of the CPU, and back. Tests compile it for the CPU.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"
#include "ops/cuda/launch/rows.h"

namespace narrowcast::cuda {

// codec::encode_fp16 with the limit rounded to T, as PyTorch's clamp rounds what it returns: in bfloat16 it is 65536,
// from where on binary16 has only Inf.
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

// Floats to codes.
template <class T, class Encode>
struct EncodeRows {
  static constexpr int64_t kPart = int64_t{256} * kBatch * kPackOf<T, uint16_t>;

  const T* x;
  uint16_t* codes;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    convert_part<kBatch>(x + part.first, part.size, codes + part.first, lane, Encode());
  }
};

// What a code stands for.
struct DecodeFp16 {
  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return codec::decode_fp16(code); }
};

// The same for BFP16.
struct DecodeBfp16 {
  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return codec::decode_bfp16(code); }
};

// What another decoder gives times `factor`: PyTorch on CUDA divides by a number by multiplying with its reciprocal.
template <class Decode>
struct DecodeTimes {
  float factor;

  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return Decode()(code) * factor; }
};

// Codes to floats.
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
