// Weight-only int8, as in PyTorch's benchmarks/gpt_fast/quantize.py: weights of
// linear layers become int8 with one scale per output channel, activations
// stay floats. docs/operators.md describes the operators of the same names.
//
// All functions go through the dispatcher, so they run on the input's device,
// take tensors of any layout, trace and script. Outputs are contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include <narrowcast/export.h>

namespace narrowcast {

// x [C, n], float32, float64, bfloat16 or float16, n >= 1 -> codes of target_dtype [C, n], scales of x's dtype [C],
// zero points int64 [C], all 0. Bit for bit gpt-fast's function of that name, each step rounded to x's dtype:
//   scale = max(max|row| / ((quant_max - quant_min) / 2), 2^-23)
//   code = clamp(round_half_even(x / scale), quant_min, quant_max)
// A row with Inf or NaN has that as its scale; a quotient that is NaN gives code 0. target_dtype is int8 or uint8, or
// int16 for float32 and float64 x, and has quant_min < quant_max in its range. No gradient: backward throws.
// c10::ValueError or c10::TypeError names the argument that is otherwise.
NARROWCAST_EXPORT std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(
    const at::Tensor& x, int64_t quant_min, int64_t quant_max, at::ScalarType target_dtype);

// input [..., in], float32, float64, bfloat16 or float16, at least 1-dimensional; weight int8 [out, in]; scales [out]
// and bias [out], of any of these dtypes -> [..., out] of input's dtype: linear(input, weight.to(input.dtype)) * scales
// + bias, with scales and bias applied in float32, or in float64 for such an input. Differentiable in input and bias;
// scales that require a gradient are an error, as they have none. Under autocast an input that is not float64 is
// rounded to its dtype first, as in at::linear. In float64 the result is that expression, bit for bit. In the other
// dtypes sums are made in float32, by LibTorch's matrix product, or exactly from inputs rounded to at most 2^-22 of
// their row's largest magnitude (2^-14 in bfloat16): docs/operators.md says which on what processor.
// c10::ValueError or c10::TypeError names the argument that is otherwise.
NARROWCAST_EXPORT at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight,
                                                     const at::Tensor& scales,
                                                     const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace narrowcast
