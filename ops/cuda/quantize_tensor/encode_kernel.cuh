// Floats to FP16 and BFP16, with the arithmetic of the CPU.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/quantize_tensor.h"
#include "ops/cuda/rows/convert_part.h"
#include "ops/cuda/rows/row_parts.h"

namespace narrowcast::cuda {

// codec::encode_fp16 with the limit rounded to T, as PyTorch's clamp rounds what it returns: in bfloat16 it is 65536,
// from where on binary16 has only Inf.
template <class T>
struct EncodeFp16 {
  NARROWCAST_HOST_DEVICE uint16_t operator()(T x) const {
    return codec::encode_fp16(static_cast<float>(x), static_cast<float>(static_cast<T>(codec::kFp16Max)));
  }
};

template <class T>
struct EncodeBfp16 {
  NARROWCAST_HOST_DEVICE uint16_t operator()(T x) const { return codec::encode_bfp16(static_cast<float>(x)); }
};

template <class T, class Encode>
struct EncodeRows {
  static constexpr int64_t kPart = int64_t{256} * kBatch * kPackOf<T, uint16_t>;

  const T* x;
  uint16_t* codes;

  NARROWCAST_HOST_DEVICE void operator()(RowPart part, Lane lane) const {
    convert_part<kBatch>(x + part.first, part.size, codes + part.first, lane, Encode());
  }
};

}  // namespace narrowcast::cuda
