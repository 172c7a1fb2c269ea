// What each instruction set offers for symmetric quantisation, by element type.
// The functions are those of quantize_kernels.h.
#pragma once

#include <cstdint>
#include <tuple>

#include "ops/cpu/weight_only_int8/quantize_kernels.h"

namespace narrowcast::cpu {

template <class T, class Code>
using QuantizeSymmetric = void (*)(const T*, int64_t, T, CodeRange, Code*);

template <class T>
using FindLargestMagnitude = float (*)(const T*, int64_t);

// The functions of one instruction set.
using SymmetricKernelTable =
    std::tuple<FindLargestMagnitude<float>, FindLargestMagnitude<c10::BFloat16>, FindLargestMagnitude<c10::Half>,
               QuantizeSymmetric<float, int8_t>, QuantizeSymmetric<float, uint8_t>, QuantizeSymmetric<float, int16_t>,
               QuantizeSymmetric<c10::BFloat16, int8_t>, QuantizeSymmetric<c10::BFloat16, uint8_t>,
               QuantizeSymmetric<c10::Half, int8_t>, QuantizeSymmetric<c10::Half, uint8_t>>;

}  // namespace narrowcast::cpu
