// FP16 and BFP16 to floats, divided by a number as PyTorch divides on CUDA: by
// multiplying with its reciprocal.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"
#include "ops/cuda/rows/convert_part.h"
#include "ops/cuda/rows/row_parts.h"

namespace narrowcast::cuda {

struct DecodeFp16 {
  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return codec::decode_fp16(code); }
};

struct DecodeBfp16 {
  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return codec::decode_bfp16(code); }
};

// What another decoder gives times `factor`.
template <class Decode>
struct DecodeTimes {
  float factor;

  NARROWCAST_HOST_DEVICE float operator()(uint16_t code) const { return Decode()(code) * factor; }
};

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
