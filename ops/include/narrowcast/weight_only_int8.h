// Weight-only int8, as in PyTorch's benchmarks/gpt_fast/quantize.py: the weights of linear layers become int8 with one
// scale per output channel; activations stay floats. docs/reference/operators.md describes the operators of the same
// names.
//
// All functions go through the dispatcher, so they run on the input's device, accept tensors of any layout, trace and
// script. Outputs are contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// x [C, n] -> codes [C, n] of target_dtype, scales [C] of x's dtype, zero points [C] int64, all 0.
// x is float32, float64, bfloat16 or float16, with n >= 1. Bit for bit equal to gpt-fast's function of that name, each
// step rounded to x's dtype:
//   scale = max(max|row| / ((quant_max - quant_min) / 2), 2^-23)
//   code = clamp(round_half_even(x / scale), quant_min, quant_max)
//
// A row that contains Inf or NaN has that as its scale; a quotient that is NaN gives code 0. The target_dtype is int8
// or uint8, or int16 if x is float32 or float64; quant_min < quant_max are in its range. There is no gradient: backward
// throws. A c10::ValueError or c10::TypeError names an argument that is wrong.
std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype);

// input [..., in], weight [out, in], scales [out], bias [out] -> [..., out] of input's dtype:
//   linear(input, weight.to(input.dtype)) * scales + bias
// The weight is int8; the others are float32, float64, bfloat16 or float16. The input has at least one dimension.
// Scales and bias are applied in float32, or in float64 if the input is float64.
//
// Differentiable in input and bias. Scales have no gradient; scales that require one are an error. Under autocast an
// input that is not float64 is first rounded to autocast's dtype, as in at::linear.
//
// In float64 the result is the above expression, bit for bit. In the other dtypes the sums are computed either in
// float32, by LibTorch's matrix product, or exactly, from inputs rounded to at most 2^-22 of their row's largest
// magnitude (2^-14 in bfloat16). The method for each processor is listed in docs/reference/operators.md.
//
// A c10::ValueError or c10::TypeError names an argument that is wrong.
at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace narrowcast
