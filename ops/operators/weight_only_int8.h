// What the kernels of weight-only int8 share on all devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "ops/codec/weight_only_int8.h"

namespace narrowcast {

// weight_only_int8_linear as the dispatcher calls it.
using LinearSignature = at::Tensor(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias);

// The registered operator weight_only_int8_linear.
const c10::TypedOperatorHandle<LinearSignature>& linear_operator();

// The operators in float64: the expressions of PyTorch's benchmarks/gpt_fast/quantize.py in LibTorch's operators, and
// so, on each device, the bits that PyTorch computes there. Kernels of the devices call these for float64 once they
// have checked the arguments (meta.h).
namespace composite {

// dynamically_quantize_per_channel: writes the codes [C, n] and scales [C] of x [C, n], n >= 1.
void quantize_per_channel_float64(const at::Tensor& x, codec::CodeRange range, const at::Tensor& codes,
                                  const at::Tensor& scales);

// weight_only_int8_linear: writes linear(input, weight) * scales + bias, each in float64, to the output [..., out].
void linear_float64(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                    const std::optional<at::Tensor>& bias, const at::Tensor& output);

}  // namespace composite
}  // namespace narrowcast
