#include "ops/composite/weight_only_int8_float64.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nan_to_num.h>

namespace narrowcast::composite {

void quantize_per_channel_float64(const at::Tensor& x, codec::CodeRange range, const at::Tensor& codes,
                                  const at::Tensor& scales) {
  const double half_range = static_cast<double>(range.max - range.min) / 2;
  scales.copy_(at::amax(x.abs(), 1).div_(half_range).clamp_min_(double{codec::kSymmetricEps}));
  const at::Tensor whole = x.div(scales.unsqueeze(1)).round_().clamp_(range.min, range.max);
  codes.copy_(whole.nan_to_num_(0.0));  // The conversion of NaN is undefined in C++.
}

void linear_float64(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                    const std::optional<at::Tensor>& bias, const at::Tensor& output) {
  at::Tensor result = output;
  at::mul_out(result, at::linear(input, weight.to(at::kDouble)), scales.to(at::kDouble));
  if (bias.has_value()) result.add_(bias->to(at::kDouble));
}

}  // namespace narrowcast::composite
