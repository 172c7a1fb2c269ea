// weight_only_int8_linear where the processor has VNNI.
#pragma once

#include <span>

#include "ops/cpu/weight_only_int8/digits/digit_kernels.h"
#include "ops/cpu/weight_only_int8/int8_layer.h"

namespace narrowcast::cpu {

// All outputs of the rows, each of which kernels.fits. `planes` is 2 or 3; layer.inputs at most kMostDigitInputs.
void multiply_digits(const DigitKernels& kernels, std::span<const Row> rows, const Int8Layer& layer, int64_t planes);

}  // namespace narrowcast::cpu
