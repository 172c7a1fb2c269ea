// Affine uint8 codes to floats.
#pragma once

#include <cstdint>

#include "ops/codec/affine_uint8.h"
#include "ops/codec/host_device.h"
#include "ops/cuda/affine_uint8/qparams.h"
#include "ops/cuda/rows/convert_part.h"
#include "ops/cuda/rows/row_parts.h"

namespace narrowcast::cuda {

struct DequantizeCode {
  codec::AffineQparams qparams;

  NARROWCAST_HOST_DEVICE float operator()(uint8_t code) const { return codec::dequantize(code, qparams); }
};

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
