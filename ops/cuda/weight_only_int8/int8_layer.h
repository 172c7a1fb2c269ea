// What the kernels of weight_only_int8_linear work on. All pointers are the device's.
#pragma once

#include <cstdint>

#include "ops/cuda/float_type.h"

namespace narrowcast::cuda {

// A linear layer: output o of a row x is (sum over k of x[k] * codes[o][k]) * scales[o] + bias[o].
struct Int8Layer {
  const int8_t* codes;  // [outputs, inputs]
  const void* scales;   // [outputs]
  const void* bias;     // [outputs], or null for none
  FloatType type;       // Of scales and bias: float32, or the type of the rows.
  int64_t inputs;
  int64_t outputs;
};

// Rows of inputs and of outputs, both of one type and one after the other: x [rows, inputs], y [rows, outputs].
struct LayerRows {
  const void* x;
  void* y;
  FloatType type;
  int64_t rows;
};

// The products of rows with some of the layer's outputs, [rows, outputs] float32.
struct ProductColumns {
  const float* products;
  int64_t first;  // The first of these outputs.
  int64_t outputs;
};

}  // namespace narrowcast::cuda
