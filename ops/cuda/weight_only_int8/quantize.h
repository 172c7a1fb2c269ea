// The kernels of dynamically_quantize_per_channel, enqueued on a stream of the current device: free of LibTorch, and
// none waits. All pointers are the device's and need only be aligned for their elements. Rows, the channels, are
// float32, bfloat16 or float16 (else std::invalid_argument). std::runtime_error if a kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/weight_only_int8.h"
#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

// Bytes of workspace for launch_symmetric_scales.
int64_t symmetric_scales_workspace(int64_t rows, int64_t row_size);

// Where the scale of each row, of x's type, and its zero point go.
struct SymmetricScalesOut {
  void* scales;
  int64_t* zero_points;
};

// The scale of each row of at least one element. `workspace` is aligned for 4 bytes and may be null if none is needed.
void launch_symmetric_scales(const FloatRows& x, codec::CodeRange range, void* workspace, SymmetricScalesOut out,
                             Stream stream);

// The dtypes of codes.
enum class CodeType { kInt8, kUint8, kInt16 };

// Where codes go; their type holds the range that is asked for.
struct SymmetricCodesOut {
  void* codes;
  CodeType type;
};

// The codes of each row. `scales` [rows] are of x's type. int16 is for float32 only.
void launch_symmetric_codes(const FloatRows& x, const void* scales, codec::CodeRange range, SymmetricCodesOut out,
                            Stream stream);

}  // namespace narrowcast::cuda
