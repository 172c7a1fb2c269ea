// Weight-only int8, the part that all devices share: the C++ functions, the operators in float64, and the linear layer
// under autocast.
#include <narrowcast/weight_only_int8.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nan_to_num.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "ops/operators/dispatch.h"
#include "ops/operators/weight_only_int8.h"

namespace narrowcast {
namespace {

// Like torch.nn.functional.linear under autocast, the layer computes in autocast's dtype, except for a float64 input.
// Scales and bias keep their dtypes: they are applied in float32 in any case.
template <at::DeviceType kDevice>
at::Tensor linear_in_autocast_dtype(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                    const std::optional<at::Tensor>& bias) {
  const c10::impl::ExcludeDispatchKeyGuard below_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  return linear_operator().call(at::autocast::cached_cast(dtype, input, kDevice), weight, scales, bias);
}

}  // namespace

const c10::TypedOperatorHandle<LinearSignature>& linear_operator() {
  static const auto op = find_operator<LinearSignature>("narrowcast::weight_only_int8_linear");
  return op;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype) {
  using Quantize = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, int64_t, int64_t, at::ScalarType);
  static const auto op = find_operator<Quantize>("narrowcast::dynamically_quantize_per_channel");
  check_defined(x, "x");
  return op.call(x, quant_min, quant_max, target_dtype);
}

at::Tensor weight_only_int8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                   const std::optional<at::Tensor>& bias) {
  check_defined(input, "input");
  return linear_operator().call(input, weight, scales, bias);
}

namespace composite {

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

}  // namespace composite

TORCH_LIBRARY_IMPL(narrowcast, AutocastCPU, m) {
  m.impl("weight_only_int8_linear", &linear_in_autocast_dtype<at::kCPU>);
}

TORCH_LIBRARY_IMPL(narrowcast, AutocastCUDA, m) {
  m.impl("weight_only_int8_linear", &linear_in_autocast_dtype<at::kCUDA>);
}

}  // namespace narrowcast
