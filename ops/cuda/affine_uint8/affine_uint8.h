// The affine uint8 kernels, enqueued on a stream of the current device, independent of LibTorch. No function waits.
// Rows, the channels, are contiguous; all pointers are to device memory and are aligned for their elements only. Throws
// std::runtime_error if a kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/affine_uint8.h"
#include "ops/codec/host_device.h"
#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

// Pointers to the scale and zero point of each channel on the device. The host never reads them: it would have to wait.
// Zero points are int32 or float32; one of the two pointers is null. They must be whole numbers in [0, 255]; other
// values give meaningless codes.
struct QparamsIn {
  const float* scales;
  const int32_t* int_zero_points;
  const float* float_zero_points;

  NARROWCAST_HOST_DEVICE codec::AffineQparams at(int64_t channel) const {
    return {scales[channel],
            int_zero_points != nullptr ? int_zero_points[channel] : static_cast<int32_t>(float_zero_points[channel])};
  }
};

// The destination of scales and zero points.
struct QparamsOut {
  float* scales;
  int32_t* zero_points;

  NARROWCAST_HOST_DEVICE void store(int64_t channel, codec::AffineQparams qparams) const {
    scales[channel] = qparams.scale;
    zero_points[channel] = qparams.zero_point;
  }
};

// Bytes of workspace for launch_choose_qparams.
int64_t choose_qparams_workspace(int64_t rows, int64_t row_size);

// The qparams of each row, for row_size >= 1. `workspace` is aligned for 8 bytes and may be null if none is needed.
void launch_choose_qparams(const FloatRows& x, void* workspace, QparamsOut qparams, Stream stream);

// The codes of each row.
void launch_quantize(const FloatRows& x, QparamsIn qparams, uint8_t* codes, Stream stream);

// Rows of codes, contiguous on the device: [rows, row_size].
struct CodeRows {
  const uint8_t* codes;
  int64_t rows;
  int64_t row_size;
};

// The decoded elements of each row.
void launch_dequantize(const CodeRows& codes, QparamsIn qparams, float* decoded, Stream stream);

}  // namespace narrowcast::cuda
