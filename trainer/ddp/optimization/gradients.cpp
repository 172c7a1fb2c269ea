#include "trainer/ddp/optimization/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>

namespace narrowcast {
namespace {

constexpr double kAddedToNorm = 1e-6;  // clip_grad_norm_ adds it against a division by zero.

// Leaves out empty gradients: aminmax fails for them, and they add nothing to a norm.
std::vector<at::Tensor> gradients_with_elements(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients = gradients_of(parameters);
  std::erase_if(gradients, [](const at::Tensor& gradient) { return gradient.numel() == 0; });
  return gradients;
}

}  // namespace

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad());
    }
  }
  return gradients;
}

// Waits for a GPU once.
bool gradients_are_finite(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> bounds;
  for (const at::Tensor& gradient : gradients_with_elements(parameters)) {
    const auto [least, greatest] = gradient.aminmax();  // Both are NaN if one element is.
    bounds.push_back(least);
    bounds.push_back(greatest);
  }
  return bounds.empty() || at::stack(bounds).isfinite().all().item<bool>();
}

at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_with_elements(parameters);
  if (gradients.empty()) {
    const at::Device device = parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
    return at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  }
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2, at::kDouble)));
}

bool are_finite_by_norm(double norm, const std::vector<at::Tensor>& parameters) {
  return std::isfinite(norm) || gradients_are_finite(parameters);
}

void clip_gradients(const std::vector<at::Tensor>& parameters, double norm, double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0, "clip_grad_norm: must be positive, but is ", max_norm);
  const double factor = max_norm / (norm + kAddedToNorm);
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (factor >= 1 || gradients.empty()) {  // A NaN norm makes all gradients NaN.
    return;
  }
  const at::NoGradGuard no_grad;
  at::_foreach_mul_(gradients, factor);
}

double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0, "clip_grad_norm: must be positive, but is ", max_norm);
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm);
}

}  // namespace narrowcast
