// Affine uint8 quantisation of tensors, bit for bit equal to PyTorch's MinMaxObserver, PerChannelMinMaxObserver
// (quint8, 0..255, eps 2^-23, axis 0) and the backend functions of its quantization_hooks.py. The operators of the same
// names are described in docs/reference/operators.md:
//   mn = min(x.min, 0), mx = max(x.max, 0), scale = max((mx - mn) / 255, 2^-23)
//   zero_point = clamp(0 - round_half_even(mn / scale), 0, 255)
//
// All functions go through the dispatcher, so they run on x's device, accept tensors of any layout, trace and script.
// Outputs are contiguous. There are no gradients: backward through an output throws.
//
// x is float32, float64, bfloat16 or float16, and the arithmetic stays in that dtype. The scale is float32. The zero
// point is int32, or float32 with whole values, and lies in [0, 255]. The codes, q, are uint8. All tensors of a call
// are on one device. A c10::ValueError or c10::TypeError names an argument that is wrong. Values on CUDA are not
// checked, as the host would have to wait for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// x [...] -> scale [1] float32, zero_point [1] int32.
// For an empty x: scale 1 and zero point 0. If x contains Inf or NaN or its range overflows float32: zero point 0 and a
// scale of Inf or NaN.
std::tuple<at::Tensor, at::Tensor> choose_qparams_per_tensor(const at::Tensor& x);

// x [C, ...] -> scales [C] float32, zero_points [C] int32, one for each index of axis 0.
// If C = 0, the results are empty; channels without elements are a c10::ValueError.
std::tuple<at::Tensor, at::Tensor> choose_qparams_per_channel(const at::Tensor& x);

// x [...], scale [1] or [], zero_point [1] or [] -> codes, uint8 [...]:
// clamp(round_half_even(x / scale) + zero_point, 0, 255), and 0 for NaN.
at::Tensor quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point);

// x [C, ...], scales [C], zero_points [C] -> codes, uint8 [C, ...]: the same for each index of axis 0.
at::Tensor quantize_per_channel(const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points);

// q uint8 [...], scale [1] or [], zero_point [1] or [] -> float32 [...]: scale * (q - zero_point).
at::Tensor dequantize_per_tensor(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point);

// q uint8 [C, ...], scales [C], zero_points [C] -> float32 [C, ...]: the same for each index of axis 0.
at::Tensor dequantize_per_channel(const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points);

}  // namespace narrowcast
