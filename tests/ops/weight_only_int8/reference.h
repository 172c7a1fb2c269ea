// gpt-fast's Python code, as ATen operators in the same order and on the tensor's device.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace narrowcast::test {

// dynamically_quantize_per_channel of benchmarks/gpt_fast/quantize.py.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> reference_quantize(const at::Tensor& x, int64_t quant_min,
                                                                         int64_t quant_max,
                                                                         at::ScalarType target_dtype) {
  const auto [min_val, max_val] = at::aminmax(x, 1);
  const at::Tensor min_val_neg = at::min(min_val, at::zeros_like(min_val));
  const at::Tensor max_val_pos = at::max(-min_val_neg, at::max(max_val, at::zeros_like(max_val)));
  const at::Tensor unclamped = max_val_pos / (static_cast<double>(quant_max - quant_min) / 2);
  const at::Tensor scales = at::clamp(unclamped, 0x1p-23).to(x.scalar_type());
  const at::Tensor zero_points = at::zeros(min_val_neg.sizes(), x.options().dtype(at::kLong));
  const at::Tensor shifted = at::round(x / scales.unsqueeze(-1)) + zero_points.unsqueeze(-1);
  // The conversion of NaN is undefined in C++; the hardware's and this library's result is 0.
  const at::Tensor codes = at::nan_to_num(at::clamp(shifted, quant_min, quant_max), 0.0).to(target_dtype);
  return {codes, scales, zero_points};
}

}  // namespace narrowcast::test
