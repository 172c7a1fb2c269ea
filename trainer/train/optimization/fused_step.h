// AdamW and SGD in a few kernels. LibTorch's C++ optimizers launch some dozen kernels per parameter, which takes a GPU
// longer than the computation; LibTorch's fused kernels process whole lists.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace narrowcast::training {

// Takes the step of `optimizer.step()`, equal up to rounding, with the same options, state and names, so that either
// function may take the next one. Does not wait for a GPU. Throws c10::ValueError for an option that make_optimizer
// never sets: AdamW's amsgrad.
//
// All parameters with a gradient must be dense, as can_step_fused requires.
void fused_step(torch::optim::AdamW& optimizer);
void fused_step(torch::optim::SGD& optimizer);

// Whether the fused kernels support all parameters of `optimizer`: dense ones of floating types, whose gradients have
// their dtype, device and strides.
bool can_step_fused(torch::optim::Optimizer& optimizer);

// LibTorch's optimizer whose steps are fused if all parameters are on GPUs. On the CPU its steps are LibTorch's own, so
// that trainings of earlier versions resume bit for bit.
template <class Plain>
class FusedOnGpu final : public Plain {
 public:
  using Plain::Plain;

  at::Tensor step(typename torch::optim::Optimizer::LossClosure closure = nullptr) override {
    if (closure != nullptr || !is_on_gpus() || !can_step_fused(*this)) {
      return Plain::step(std::move(closure));
    }
    fused_step(*this);
    return {};
  }

 private:
  bool is_on_gpus() {
    for (const auto& group : this->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (!parameter.is_cuda()) {
          return false;
        }
      }
    }
    return true;
  }
};

}  // namespace narrowcast::training
