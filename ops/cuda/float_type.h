// The dtypes of floats, for code that is free of LibTorch.
#pragma once

#include <cstdint>

namespace narrowcast::cuda {

enum class FloatType { kFloat32, kFloat64, kBfloat16, kFloat16 };

// Rows of floats, one after the other on the device: [rows, row_size].
struct FloatRows {
  const void* x;
  FloatType type;
  int64_t rows;
  int64_t row_size;
};

}  // namespace narrowcast::cuda
