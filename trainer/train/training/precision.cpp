#include "trainer/train/training/precision.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <narrowcast/errors.h>
#include "ops/enumerator_names.h"
#include "trainer/train/training/gradients.h"

namespace narrowcast::training {
namespace {

constexpr EnumeratorNames<Precision, 3> kPrecisionNames{
    "precision", "Precision", {{{Precision::kFp32, "fp32"}, {Precision::kBf16, "bf16"}, {Precision::kFp16, "fp16"}}}};

}  // namespace

Precision parse_precision(const std::string& name) { return kPrecisionNames.parse_known(name); }

std::string to_string(Precision precision) { return std::string(kPrecisionNames.name_of(precision)); }

Autocast::Autocast(at::DeviceType device, Precision precision)
    : device_(device), active_(precision != Precision::kFp32) {
  if (active_) {
    was_enabled_ = at::autocast::is_autocast_enabled(device_);
    former_dtype_ = at::autocast::get_autocast_dtype(device_);
    at::autocast::increment_nesting();
    at::autocast::set_autocast_dtype(device_, precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
    at::autocast::set_autocast_enabled(device_, true);
  }
}

// The copies of parameters in the narrow type are good until the parameters change.
Autocast::~Autocast() {
  if (active_) {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, former_dtype_);
  }
}

GradientScaler::GradientScaler(at::Device device, const Options& options)
    : options_(options),
      scale_(at::full({}, options.scale, at::TensorOptions(at::kFloat).device(device))),
      growth_tracker_(at::zeros({}, at::TensorOptions(at::kInt).device(device))) {}

bool GradientScaler::unscale(const std::vector<at::Tensor>& parameters) {
  return take(unscale_on_device(parameters).to(at::kCPU));
}

GradientScaler::Unscaled GradientScaler::unscale_and_measure(const std::vector<at::Tensor>& parameters) {
  const at::Tensor numbers = unscale_on_device(parameters);
  const at::Tensor known = at::cat({numbers, gradient_norm(parameters).view({1})}).to(at::kCPU);
  return {.are_finite = take(known), .norm = known[3].item<double>()};
}

at::Tensor GradientScaler::unscale_on_device(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  at::Tensor found_nonfinite = at::zeros({}, scale_.options());
  const at::Tensor former_scale = scale_.clone();
  // As torch.amp.GradScaler does: a float32 reciprocal would be inexact for scales that are no powers of two.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::_amp_foreach_non_finite_check_and_unscale_(gradients_of(parameters), found_nonfinite, inverse);
  at::_amp_update_scale_(scale_, growth_tracker_, found_nonfinite, options_.growth, options_.backoff,
                         options_.growth_interval);
  return at::stack({found_nonfinite, former_scale, scale_}).to(at::kDouble);
}

bool GradientScaler::take(const at::Tensor& known) {
  change_ = known[2].item<double>() / known[1].item<double>();
  return known[0].item<double>() == 0;
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
