// The contract of the operators of weight-only int8; see meta.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

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
