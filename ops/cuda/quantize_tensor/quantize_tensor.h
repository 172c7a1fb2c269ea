// The FP16 and BFP16 kernels, enqueued on a stream of the current device, independent of LibTorch. No function waits.
// All pointers are to device memory and are aligned for their elements only. Throws std::runtime_error if a kernel
// cannot be launched.
#pragma once

#include <cstdint>

#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

// codes[i] = the code of x[i], for 0 <= i < n.
void launch_encode_fp16(const void* x, FloatType type, int64_t n, uint16_t* codes, Stream stream);
void launch_encode_bfp16(const void* x, FloatType type, int64_t n, uint16_t* codes, Stream stream);

// decoded[i] = the value of codes[i], for 0 <= i < n.
void launch_decode_fp16(const uint16_t* codes, int64_t n, float* decoded, Stream stream);
void launch_decode_bfp16(const uint16_t* codes, int64_t n, float* decoded, Stream stream);

// Codes, and the factor of their values.
struct ScaledCodes {
  const uint16_t* codes;
  float factor;
};

// decoded[i] = the value of codes[i] times the factor, for 0 <= i < n.
void launch_decode_fp16(ScaledCodes scaled, int64_t n, float* decoded, Stream stream);
void launch_decode_bfp16(ScaledCodes scaled, int64_t n, float* decoded, Stream stream);

}  // namespace narrowcast::cuda
