#include "trainer/train/training/gradient_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <narrowcast/errors.h>

namespace narrowcast::training {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad());
    }
  }
  return gradients;
}

}  // namespace

GradientScaler::GradientScaler(at::Device device, const Options& options)
    : options_(options),
      scale_(at::full({}, options.scale, at::TensorOptions(at::kFloat).device(device))),
      growth_tracker_(at::zeros({}, at::TensorOptions(at::kInt).device(device))) {}

bool GradientScaler::unscale(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  at::Tensor found_nonfinite = at::zeros({}, scale_.options());
  // As torch.amp.GradScaler does: a float32 reciprocal would be inexact for scales that are no powers of two.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::_amp_foreach_non_finite_check_and_unscale_(gradients_of(parameters), found_nonfinite, inverse);
  at::_amp_update_scale_(scale_, growth_tracker_, found_nonfinite, options_.growth, options_.backoff,
                         options_.growth_interval);
  return found_nonfinite.item<float>() == 0;
}

void GradientScaler::load_state(const checkpoint::TensorMap& state) {
  const checkpoint::TensorMap own = this->state();
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    NARROWCAST_CHECK_INPUT(found != state.end(), "the gradient scaler's '", name, "' is missing");
    NARROWCAST_CHECK_INPUT(found->second.scalar_type() == tensor.scalar_type() && found->second.dim() == 0,
                           "the gradient scaler's '", name, "' is ", found->second.scalar_type(), " ",
                           found->second.sizes(), ", but must be ", tensor.scalar_type(), " []");
  }
  for (const auto& [name, tensor] : own) {
    tensor.copy_(state.at(name));
  }
}

}  // namespace narrowcast::training
