// The contract of the weight-only int8 operators: each function checks its
// operator's arguments and returns the outputs, allocated and not yet filled,
// on the input's device. They are the meta kernels; CPU and CUDA kernels start
// with them, so that every device refuses and returns the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace narrowcast::meta {

// For x [C, n]: codes of the target dtype [C, n], scales of x's dtype [C], zero points int64 [C].
std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype);

// For input [..., in] and weight [out, in]: output of input's dtype [..., out].
at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias);

}  // namespace narrowcast::meta
