// The kernels of dynamically_quantize_per_channel, enqueued on a stream of the current device, independent of LibTorch.
// No function waits. All pointers are to device memory and are aligned for their elements only. Errors:
// - std::invalid_argument: rows (the channels) are not float32, bfloat16 or float16.
// - std::runtime_error: a kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/weight_only_int8.h"
#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

// Bytes of workspace for launch_symmetric_scales.
int64_t symmetric_scales_workspace(int64_t rows, int64_t row_size);

// The destination of each row's scale, of x's type, and zero point.
struct SymmetricScalesOut {
  void* scales;
  int64_t* zero_points;
};

// The scale of each row of at least one element. `workspace` is aligned to 4 bytes and may be null if its size is 0.
void launch_symmetric_scales(const FloatRows& x, codec::CodeRange range, void* workspace, SymmetricScalesOut out,
                             Stream stream);

// The dtypes of codes.
enum class CodeType { kInt8, kUint8, kInt16 };

// The destination of codes, whose type holds the requested range.
struct SymmetricCodesOut {
  void* codes;
  CodeType type;
};

// The codes of each row. `scales` [rows] have x's type. int16 is valid only if x is float32.
void launch_symmetric_codes(const FloatRows& x, const void* scales, codec::CodeRange range, SymmetricCodesOut out,
                            Stream stream);

}  // namespace narrowcast::cuda
