// Multiplies rows by the kernels for processors with VNNI (digit_kernels.h), on LibTorch's threads.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu/weight_only_int8/int8_layer.h"

namespace narrowcast::cpu {

// Computes all outputs of the rows, for which `planes` is a suitable number. layer.inputs is at most kMostDigitInputs.
// T is float or c10::BFloat16.
template <class T>
void multiply_digits(std::span<const Row<T>> rows, const Int8Layer& layer, int64_t planes);

}  // namespace narrowcast::cpu
