// The affine uint8 kernels, enqueued on a stream of the current device: free of
// LibTorch, and none waits. Rows, the channels, lie one after the other; all
// pointers are the device's and need only be aligned for their elements.
// std::runtime_error if a kernel cannot be launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/affine_uint8/qparams.h"
#include "ops/cuda/float_type.h"

namespace narrowcast::cuda {

// Bytes of workspace for launch_choose_qparams.
int64_t choose_qparams_workspace(int64_t rows, int64_t row_size);

// The qparams of each row, for row_size >= 1. `workspace` is aligned for 8 bytes and may be null if none is needed.
void launch_choose_qparams(const FloatRows& x, void* workspace, QparamsOut qparams, cudaStream_t stream);

// The codes of each row.
void launch_quantize(const FloatRows& x, QparamsIn qparams, uint8_t* codes, cudaStream_t stream);

// Rows of codes, one after the other on the device: [rows, row_size].
struct CodeRows {
  const uint8_t* codes;
  int64_t rows;
  int64_t row_size;
};

// What the codes of each row stand for.
void launch_dequantize(const CodeRows& codes, QparamsIn qparams, float* decoded, cudaStream_t stream);

}  // namespace narrowcast::cuda
