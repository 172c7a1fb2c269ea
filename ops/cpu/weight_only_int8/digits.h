// weight_only_int8_linear where the processor has VNNI.
#pragma once

#include <span>

#include "ops/cpu/weight_only_int8/digit_kernels.h"
#include "ops/cpu/weight_only_int8/int8_layer.h"

namespace narrowcast::cpu {

// All outputs of the rows, which `planes` suit. layer.inputs is at most kMostDigitInputs. T is float or c10::BFloat16.
template <class T>
void multiply_digits(std::span<const Row<T>> rows, const Int8Layer& layer, int64_t planes);

}  // namespace narrowcast::cpu
