// The contract of the affine uint8 operators; see meta.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace narrowcast::meta {

// For x [...]: scale float32 [1], zero_point int32 [1].
std::tuple<at::Tensor, at::Tensor> choose_qparams_per_tensor(const at::Tensor& x);

// For x [C, ...]: scales float32 [C], zero_points int32 [C].
std::tuple<at::Tensor, at::Tensor> choose_qparams_per_channel(const at::Tensor& x);

// For x [...]: codes uint8 [...].
at::Tensor quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point);

// For x [C, ...]: codes uint8 [C, ...].
at::Tensor quantize_per_channel(const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points);

// For q [...]: float32 [...].
at::Tensor dequantize_per_tensor(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point);

// For q [C, ...]: float32 [C, ...].
at::Tensor dequantize_per_channel(const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points);

}  // namespace narrowcast::meta
