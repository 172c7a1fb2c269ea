#include "trainer/train/optimization/fused_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace narrowcast::training {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

// The arguments of one call of a fused kernel: tensors of one dtype on one device whose parameters have taken the same
// number of steps. `first` and `second` are the optimizer's state tensors, if it has them.
struct Batch {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> first;
  std::vector<at::Tensor> second;

  void add(const at::Tensor& parameter) {
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
  }
};

// Batches by dtype and device of their parameters and by number of steps. Most groups of parameters form one batch.
using Batches = std::map<std::tuple<at::ScalarType, at::DeviceIndex, int64_t>, Batch>;

Batch& batch_of(Batches& batches, const at::Tensor& parameter, int64_t steps) {
  Batch& batch = batches[{parameter.scalar_type(), parameter.device().index(), steps}];
  batch.add(parameter);
  return batch;
}

bool takes_part(const at::Tensor& parameter) { return parameter.grad().defined() && parameter.numel() > 0; }

// The parameter's state; a new one if it has taken no step.
template <class State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) {
    state = std::make_unique<State>();
  }
  return static_cast<State&>(*state);
}

AdamWParamState& adamw_state(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = state_of<AdamWParamState>(optimizer, parameter);
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    state.exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  }
  state.step(state.step() + 1);
  return state;
}

void step_adamw(Optimizer& optimizer, OptimizerParamGroup& group) {
  const auto& options = static_cast<const AdamWOptions&>(group.options());
  TORCH_CHECK_VALUE(!options.amsgrad(), "amsgrad: is not supported by the fused step");
  Batches batches;
  for (const at::Tensor& parameter : group.params()) {
    if (parameter.grad().defined()) {
      const AdamWParamState& state = adamw_state(optimizer, parameter);  // An empty parameter also counts its steps.
      if (takes_part(parameter)) {
        Batch& batch = batch_of(batches, parameter, state.step());
        batch.first.push_back(state.exp_avg());
        batch.second.push_back(state.exp_avg_sq());
      }
    }
  }
  for (const auto& [key, batch] : batches) {
    // The kernels read the number of steps from a float32 on the device, one per parameter; here all share this one.
    const at::Tensor steps = at::full({}, static_cast<double>(std::get<2>(key)),
                                      at::TensorOptions(at::kFloat).device(batch.parameters.front().device()));
    const std::vector<at::Tensor> all_steps(batch.parameters.size(), steps);
    const auto [beta1, beta2] = options.betas();
    at::_fused_adamw_(batch.parameters, batch.gradients, batch.first, batch.second, /*max_exp_avg_sqs=*/{}, all_steps,
                      options.lr(), beta1, beta2, options.weight_decay(), options.eps(), /*amsgrad=*/false,
                      /*maximize=*/false);
  }
}

// SGD without momentum has no state.
void step_sgd(Optimizer& optimizer, OptimizerParamGroup& group) {
  const auto& options = static_cast<const SGDOptions&>(group.options());
  constexpr int64_t kFirst = 0;
  constexpr int64_t kLater = 1;
  Batches batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) {
      continue;
    }
    if (options.momentum() == 0) {
      if (takes_part(parameter)) {
        batch_of(batches, parameter, kLater);
      }
      continue;
    }
    auto& state = state_of<SGDParamState>(optimizer, parameter);
    const bool is_first = !state.momentum_buffer().defined();
    if (is_first) {
      state.momentum_buffer(at::empty_like(parameter, at::MemoryFormat::Preserve));  // The kernel fills it.
    }
    if (takes_part(parameter)) {
      batch_of(batches, parameter, is_first ? kFirst : kLater).first.push_back(state.momentum_buffer());
    }
  }
  for (const auto& [key, batch] : batches) {
    at::_fused_sgd_(batch.parameters, batch.gradients, batch.first, options.weight_decay(), options.momentum(),
                    options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                    /*is_first_step=*/std::get<2>(key) == kFirst);
  }
}

bool fits(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  return !gradient.defined() ||
         (parameter.is_floating_point() && parameter.layout() == at::kStrided && gradient.layout() == at::kStrided &&
          parameter.is_non_overlapping_and_dense() && gradient.scalar_type() == parameter.scalar_type() &&
          gradient.device() == parameter.device() && gradient.strides() == parameter.strides());
}

}  // namespace

void fused_step(torch::optim::AdamW& optimizer) {
  const at::NoGradGuard no_grad;
  for (OptimizerParamGroup& group : optimizer.param_groups()) {
    step_adamw(optimizer, group);
  }
}

void fused_step(torch::optim::SGD& optimizer) {
  const at::NoGradGuard no_grad;
  for (OptimizerParamGroup& group : optimizer.param_groups()) {
    step_sgd(optimizer, group);
  }
}

bool can_step_fused(Optimizer& optimizer) {
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!fits(parameter)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace narrowcast::training
