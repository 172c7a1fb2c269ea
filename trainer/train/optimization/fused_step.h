// AdamW and SGD in a few kernels. LibTorch's C++ optimizers launch some dozen kernels for each parameter, which takes a
// GPU longer than computing them; LibTorch's fused kernels take whole lists.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace narrowcast::training {

// The step that `optimizer.step()` would take, but for roundings: the same options, state and names of it, so that
// either may take the next one. Nothing waits for a GPU. c10::ValueError for an option that no make_optimizer sets:
// AdamW's amsgrad.
//
// All parameters with a gradient are dense, as can_step_fused says.
void fused_step(torch::optim::AdamW& optimizer);
void fused_step(torch::optim::SGD& optimizer);

// Whether the fused kernels take all parameters of `optimizer`: dense ones of floating types, whose gradients have
// their dtype, device and strides.
bool can_step_fused(torch::optim::Optimizer& optimizer);

// LibTorch's optimizer whose steps are fused where all parameters are on GPUs. On the CPU they are LibTorch's own, so
// that trainings of earlier versions are resumed bit for bit.
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
