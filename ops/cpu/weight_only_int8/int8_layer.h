// The arguments of the kernels of weight_only_int8_linear. row_kernels.h has vectorised kernels for any processor.
// digit_kernels.h and digits.h have kernels for processors with VNNI, which compute with digits. Pointers need no
// alignment.
#pragma once

#include <cstdint>

namespace narrowcast::cpu {

// A linear layer: output o of a row x is (sum over k of x[k] * codes[o][k]) * scales[o] + bias[o].
struct Int8Layer {
  const int8_t* codes;  // [outputs, inputs]
  const float* scales;  // [outputs]
  const float* bias;    // [outputs], or null
  int64_t inputs;
  int64_t outputs;
};

// Some of the layer's outputs, or of its blocks of outputs: begin <= i < end.
struct Range {
  int64_t begin;
  int64_t end;
};

// One row's inputs and the destination of its outputs.
template <class T>
struct Row {
  const T* x;  // [inputs]
  T* y;        // [outputs]
};

}  // namespace narrowcast::cpu
