// AdamW and SGD in one pass over memory. LibTorch's C++ optimizers need some dozen kernels per parameter. On a GPU they
// take longer to launch than to run, and on the CPU each of them reads and writes memory.
#pragma once

#include <c10/util/Exception.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <utility>

namespace narrowcast::optim {

// Takes the step of `optimizer.step()` with `gradient_scale` times the gradients. The result is equal up to rounding,
// and options, state and names are the same, so that either function may take the next step. Float32 on the CPU is
// stepped by our own kernels (ops/cpu/optimizer/step_kernels.h has the formulas), all other tensors by LibTorch's fused
// kernels. The kernels of ours leave gradients unscaled. Does not wait for a GPU. Throws c10::ValueError for an option
// that make_optimizer never sets: AdamW's amsgrad.
//
// All parameters with a gradient must be dense, as can_step_fused requires.
void fused_step(torch::optim::AdamW& optimizer, double gradient_scale = 1);
void fused_step(torch::optim::SGD& optimizer, double gradient_scale = 1);

// The same for one group of an optimizer of any class. The group's options are AdamWOptions.
void fused_adamw_step(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
                      double gradient_scale = 1);

// Whether the kernels support a parameter: a dense one of a floating type, whose gradient has its dtype, device and
// strides. Also one without a gradient. For an optimizer: whether they support all of its parameters.
bool can_step_fused(const at::Tensor& parameter);
bool can_step_fused(torch::optim::Optimizer& optimizer);

// Multiplies all gradients by `factor`.
void scale_gradients(torch::optim::Optimizer& optimizer, double factor);

// An optimizer that can multiply gradients in the pass of its step.
class ScalesGradients {
 public:
  virtual ~ScalesGradients() = default;

  // The next step uses `scale` times the gradients. They may be left unscaled.
  void scale_next_step(double scale) { scale_ = scale; }

 protected:
  // The scale of this step. The next one is 1 again.
  double take_scale() { return std::exchange(scale_, 1.0); }

 private:
  double scale_ = 1;
};

// LibTorch's optimizer `Plain`, whose steps are fused if the kernels support all parameters. Otherwise the step is
// LibTorch's own.
template <class Plain>
class Fused final : public Plain, public ScalesGradients {
 public:
  using Plain::Plain;

  at::Tensor step(typename torch::optim::Optimizer::LossClosure closure = nullptr) override {
    const double scale = take_scale();
    TORCH_CHECK_VALUE(closure == nullptr || scale == 1, "optimizer: a closure computes gradients anew, so they cannot ",
                      "be scaled by ", scale);
    if (closure == nullptr && can_step_fused(*this)) {
      fused_step(*this, scale);
      return {};
    }
    scale_gradients(*this, scale);
    return Plain::step(std::move(closure));
  }
};

}  // namespace narrowcast::optim
