#include "trainer/ddp/optimization/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <utility>

#include "ops/cpu/optimizer/gradient_norm.h"

namespace narrowcast {
namespace {

constexpr double kAddedToNorm = 1e-6;  // clip_grad_norm_ adds it against a division by zero.

// Leaves out empty gradients: aminmax fails for them, and they add nothing to a norm.
std::vector<at::Tensor> gradients_with_elements(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients = gradients_of(parameters);
  std::erase_if(gradients, [](const at::Tensor& gradient) { return gradient.numel() == 0; });
  return gradients;
}

bool has_own_kernel(const at::Tensor& gradient) {
  return gradient.is_cpu() && gradient.scalar_type() == at::kFloat && gradient.layout() == at::kStrided;
}

// Gradients with elements, by the functions that measure them.
class GradientsByKernel {
 public:
  explicit GradientsByKernel(const std::vector<at::Tensor>& parameters) {
    for (at::Tensor& gradient : gradients_with_elements(parameters)) {
      (has_own_kernel(gradient) ? own_ : others_).push_back(std::move(gradient));
    }
    for (at::Tensor& gradient : own_) {
      if (!gradient.is_non_overlapping_and_dense()) {
        gradient = gradient.contiguous();
      }
      pieces_.push_back({gradient.const_data_ptr<float>(), gradient.numel()});
    }
  }

  const std::vector<cpu::GradientPiece>& pieces() const { return pieces_; }
  const std::vector<at::Tensor>& others() const { return others_; }

 private:
  std::vector<at::Tensor> own_;
  std::vector<cpu::GradientPiece> pieces_;  // the elements of own_
  std::vector<at::Tensor> others_;
};

double norm_of_pieces(const std::vector<cpu::GradientPiece>& pieces) {
  const float greatest = cpu::greatest_magnitude(pieces);
  return cpu::norm_of_sum(cpu::sum_of_squares(pieces, greatest), greatest);
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
  const GradientsByKernel gradients(parameters);
  std::vector<at::Tensor> bounds;
  for (const at::Tensor& gradient : gradients.others()) {
    const auto [least, greatest] = gradient.aminmax();  // Both are NaN if one element is.
    bounds.push_back(least);
    bounds.push_back(greatest);
  }
  return std::isfinite(cpu::greatest_magnitude(gradients.pieces())) &&
         (bounds.empty() || at::stack(bounds).isfinite().all().item<bool>());
}

at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const GradientsByKernel gradients(parameters);
  std::vector<at::Tensor> norms;
  if (!gradients.pieces().empty()) {
    norms.push_back(at::full({}, norm_of_pieces(gradients.pieces()), at::kDouble));
  }
  if (!gradients.others().empty()) {
    norms.push_back(at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients.others(), 2, at::kDouble))));
  }
  if (norms.empty()) {
    const at::Device device = parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
    return at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  }
  return norms.size() == 1 ? norms.front() : at::linalg_vector_norm(at::stack(norms));
}

bool are_finite_by_norm(double norm, const std::vector<at::Tensor>& parameters) {
  return std::isfinite(norm) || gradients_are_finite(parameters);
}

double clip_factor(double norm, double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0, "clip_grad_norm: must be positive, but is ", max_norm);
  const double factor = max_norm / (norm + kAddedToNorm);
  return factor >= 1 ? 1 : factor;
}

void clip_gradients(const std::vector<at::Tensor>& parameters, double norm, double max_norm) {
  const double factor = clip_factor(norm, max_norm);
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (factor == 1 || gradients.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  at::_foreach_mul_(gradients, factor);
}

double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
  const double norm = gradient_norm(parameters).item<double>();
  clip_gradients(parameters, norm, max_norm);
  return norm;
}

}  // namespace narrowcast
