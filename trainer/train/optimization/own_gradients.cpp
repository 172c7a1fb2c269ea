#include "trainer/train/optimization/own_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <cmath>

#include "trainer/ddp/optimization/gradients.h"

namespace narrowcast::training {

OwnGradients::OwnGradients(const std::vector<at::Tensor>& parameters)
    : parameters_(parameters), hooks_(parameters, [this](size_t parameter) { look_at(parameter); }) {}

void OwnGradients::begin_step() {
  found_ = false;
  sums_.clear();
}

bool OwnGradients::were_finite() const {
  return !found_ && (sums_.empty() || at::stack(sums_).isfinite().all().item<bool>());
}

// A finite sum proves that all elements are finite. A sum that is not finite may have overflowed, so the elements are
// checked. A float64 sum of a narrower type cannot overflow.
void OwnGradients::look_at(size_t parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor& gradient = parameters_[parameter].grad();
  if (!gradient.defined()) {
    return;  // A pass may produce no gradient.
  }
  if (gradient.is_cpu()) {
    if (!std::isfinite(gradient.sum().item<double>()) && !gradients_are_finite({parameters_[parameter]})) {
      found_ = true;
    }
  } else {
    sums_.push_back(gradient.sum(at::kDouble));
  }
}

}  // namespace narrowcast::training
