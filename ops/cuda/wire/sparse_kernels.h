// Messages in the sparse formats (ops/codec/sparse_top.h, docs/reference/wire-format.md) over arrays in device memory.
// The bytes equal the codec's, and so do the floats, except for the bits of a NaN.
//
// Each function launches one kernel on `stream`, of the current device, and does not wait. All pointers are to device
// memory, are aligned for their elements only, and may be null if n is 0. Errors:
// - std::invalid_argument: a value is not a valid FloatType, or there are no ranks.
// - std::runtime_error: the kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/sparse_top.h"
#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/wire/wire_kernels.h"

namespace narrowcast::cuda {

// An array, and the destination of its message.
struct SparseEncodeArguments {
  int per_mille = 0;
  FloatType type = FloatType::kFloat32;  // x's type.
  const void* x = nullptr;               // n elements.
  int64_t n = 0;
  float* residual = nullptr;  // Like EncodeArguments::residual.
  float* spent = nullptr;     // Null, or n numbers contained in x that are set to 0, except in blocks of NaN.
  uint8_t* message = nullptr;
};

// All ranks' contributions to a mean, and its destination.
struct SparseAverageArguments {
  int per_mille = 0;
  RankParts parts = {};                  // Messages of any bytes. The own residual does not change.
  FloatType type = FloatType::kFloat32;  // mean's type.
  void* mean = nullptr;                  // n elements. May be parts.own if the types are the same.
};

// Writes the message of x.
void sparse_encode(const SparseEncodeArguments& arguments, Stream stream);

// Writes the mean of all parts, summed as in wire_average; for a single message, its decoded elements.
void sparse_average(const SparseAverageArguments& arguments, Stream stream);

}  // namespace narrowcast::cuda
