// Kernels of weight_only_int8_linear for any processor, whose instruction set is chosen at run time. Each runs on the
// calling thread. Pointers need no alignment.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "ops/cpu/weight_only_int8/int8_layer.h"

namespace narrowcast::cpu {

inline constexpr int64_t kMostFewRows = 4;

// The given outputs of `count` rows (1..kMostFewRows), directly from the codes. Sums are float32. The order of their
// terms, and so every bit, depends only on the number of inputs and the instruction set.
void multiply_few_rows(const Row<float>* rows, int64_t count, const Int8Layer& layer, Range outputs);

// out[i] = codes[i], exactly.
void widen_codes(const int8_t* codes, int64_t n, float* out);
void widen_codes(const int8_t* codes, int64_t n, c10::BFloat16* out);

// y[i] = product[i] * scales[o] + bias[o] for each output o = outputs.begin + i, in float32 until y.
void scale_outputs(const float* product, const Int8Layer& layer, Range outputs, float* y);
void scale_outputs(const c10::BFloat16* product, const Int8Layer& layer, Range outputs, c10::BFloat16* y);

}  // namespace narrowcast::cpu
