// Code of weight-only int8 that the kernels of all devices share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "ops/codec/weight_only_int8.h"

namespace narrowcast {

// The signature of weight_only_int8_linear in the dispatcher.
using LinearSignature = at::Tensor(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias);

// The registered operator weight_only_int8_linear.
const c10::TypedOperatorHandle<LinearSignature>& linear_operator();

// The operators in float64: the expressions of PyTorch's benchmarks/gpt_fast/quantize.py in LibTorch's operators. On
// each device they give the bits that PyTorch computes there. The devices' kernels check the arguments
// (weight_only_int8_meta.h) and then call these functions for float64.
namespace composite {

// dynamically_quantize_per_channel: writes the codes [C, n] and scales [C] of x [C, n], n >= 1.
void quantize_per_channel_float64(const at::Tensor& x, codec::CodeRange range, const at::Tensor& codes,
                                  const at::Tensor& scales);

// weight_only_int8_linear: writes linear(input, weight) * scales + bias, each in float64, to the output [..., out].
void linear_float64(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                    const std::optional<at::Tensor>& bias, const at::Tensor& output);

}  // namespace composite
}  // namespace narrowcast
