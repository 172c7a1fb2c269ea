#include <narrowcast/grad_scaler.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>

#include <narrowcast/errors.h>
#include <narrowcast/sharded_optimizer.h>
#include "trainer/ddp/optimization/gradients.h"

namespace narrowcast {
namespace {

bool is_scale(double value) { return value > 0 && std::isfinite(static_cast<float>(value)); }

GradScalerOptions checked(const GradScalerOptions& options) {
  TORCH_CHECK_VALUE(is_scale(options.init_scale), "init_scale: must be positive and finite in float32, but is ",
                    options.init_scale);
  TORCH_CHECK_VALUE(std::isfinite(options.growth_factor) && options.growth_factor > 1,
                    "growth_factor: must be greater than 1, but is ", options.growth_factor);
  TORCH_CHECK_VALUE(options.backoff_factor > 0 && options.backoff_factor < 1,
                    "backoff_factor: must be greater than 0 and less than 1, but is ", options.backoff_factor);
  TORCH_CHECK_VALUE(options.growth_interval >= 1, "growth_interval: must be at least 1, but is ",
                    options.growth_interval);
  return options;
}

}  // namespace

GradScaler::GradScaler(at::Device device, const GradScalerOptions& options)
    : options_(checked(options)),
      scale_(at::full({}, options.init_scale, at::TensorOptions(at::kFloat).device(device))),
      growth_tracker_(at::zeros({}, at::TensorOptions(at::kInt).device(device))) {}

bool GradScaler::unscale(const std::vector<at::Tensor>& parameters) {
  return take(unscale_on_device(parameters).to(at::kCPU));
}

GradScaler::Unscaled GradScaler::unscale_and_measure(const std::vector<at::Tensor>& parameters) {
  const at::Tensor numbers = unscale_on_device(parameters);
  const at::Tensor known = at::cat({numbers, gradient_norm(parameters).view({1})}).to(at::kCPU);
  return {.are_finite = take(known), .norm = known[3].item<double>()};
}

// The norm is finite if, and only if, all gradients are.
GradScaler::Unscaled GradScaler::unscale_and_measure(ShardedOptimizer& optimizer) {
  const at::NoGradGuard no_grad;
  const at::Tensor inverse = inverse_scale();
  for (at::Tensor gradient : optimizer.own_gradients()) {
    gradient.mul_(inverse);
  }
  const double norm = optimizer.gradient_norm();
  const bool are_finite = std::isfinite(norm);
  take(update(at::full({}, are_finite ? 0 : 1, scale_.options())));
  return {.are_finite = are_finite, .norm = norm};
}

// Returns [3] in float64: the number of gradients that are not finite (or 1), the former scale and the next scale. Does
// not wait for the device.
at::Tensor GradScaler::unscale_on_device(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  at::Tensor found_nonfinite = at::zeros({}, scale_.options());
  at::_amp_foreach_non_finite_check_and_unscale_(gradients_of(parameters), found_nonfinite, inverse_scale());
  return update(found_nonfinite);
}

// In float64, as in torch.amp.GradScaler: a float32 reciprocal would be inexact for scales that are not powers of two.
at::Tensor GradScaler::inverse_scale() const { return scale_.to(at::kDouble).reciprocal().to(at::kFloat); }

at::Tensor GradScaler::update(const at::Tensor& found_nonfinite) {
  const at::Tensor former_scale = scale_.clone();
  at::_amp_update_scale_(scale_, growth_tracker_, found_nonfinite, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  return at::stack({found_nonfinite, former_scale, scale_}).to(at::kDouble);
}

// Applies the result of unscale_on_device once it is on the CPU. Returns whether the gradients are finite.
bool GradScaler::take(const at::Tensor& known) {
  change_ = known[2].item<double>() / known[1].item<double>();
  return known[0].item<double>() == 0;
}

void GradScaler::load_state(const hooks::HookState& state) {
  const hooks::HookState own = this->state();
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    NARROWCAST_CHECK_INPUT(found != state.end(), "the gradient scaler's '", name, "' is missing");
    NARROWCAST_CHECK_INPUT(found->second.scalar_type() == tensor.scalar_type() && found->second.dim() == 0,
                           "the gradient scaler's '", name, "' is ", found->second.scalar_type(), " ",
                           found->second.sizes(), ", but must be ", tensor.scalar_type(), " []");
  }
  const auto scale = state.at("scale").item<double>();
  NARROWCAST_CHECK_INPUT(is_scale(scale), "the gradient scaler's 'scale' must be positive and finite, but is ", scale);
  const auto tracked = state.at("growth_tracker").item<int64_t>();
  NARROWCAST_CHECK_INPUT(tracked >= 0, "the gradient scaler's 'growth_tracker' must be at least 0, but is ", tracked);
  for (const auto& [name, tensor] : own) {
    tensor.copy_(state.at(name));
  }
}

}  // namespace narrowcast
