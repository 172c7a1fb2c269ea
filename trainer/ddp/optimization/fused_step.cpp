#include "trainer/ddp/optimization/fused_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
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

#include "ops/cpu/optimizer/optimizer_step.h"

namespace narrowcast::optim {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

// The arguments of one call of a kernel of LibTorch: tensors of one dtype on one device whose parameters have taken the
// same number of steps. `first` and `second` are the optimizer's state tensors, if it has them.
struct Batch {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> first;
  std::vector<at::Tensor> second;

  void add(const at::Tensor& parameter) {
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
  }
  void scale_gradients(double scale) const {
    if (scale != 1) {
      at::_foreach_mul_(gradients, scale);
    }
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

bool has_own_kernel(const at::Tensor& parameter) { return parameter.is_cpu() && parameter.scalar_type() == at::kFloat; }

// The elements of a tensor that our kernels change. As with LibTorch's operators, autograd notices the change.
float* writable(const at::Tensor& tensor) {
  tensor.unsafeGetTensorImpl()->bump_version();
  return tensor.mutable_data_ptr<float>();
}

// The parameter's state; a new one if it has taken no step.
template <class State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) {
    state = std::make_unique<State>();
  }
  return static_cast<State&>(*state);
}

at::Tensor zeros_for(const at::Tensor& parameter) { return at::zeros_like(parameter, at::MemoryFormat::Preserve); }

// A state tensor whose elements are in the order of the parameter's. LibTorch's steps can have made another order.
at::Tensor in_order_of(const at::Tensor& parameter, const at::Tensor& state) {
  TORCH_CHECK_VALUE(state.sizes() == parameter.sizes(), "the optimizer's state of a parameter of ", parameter.sizes(),
                    " has the sizes ", state.sizes());
  return state.strides() == parameter.strides() ? state
                                                : at::empty_like(parameter, at::MemoryFormat::Preserve).copy_(state);
}

AdamWParamState& adamw_state(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = state_of<AdamWParamState>(optimizer, parameter);
  if (!state.exp_avg().defined()) {
    state.exp_avg(zeros_for(parameter));
    state.exp_avg_sq(zeros_for(parameter));
  }
  state.exp_avg(in_order_of(parameter, state.exp_avg()));
  state.exp_avg_sq(in_order_of(parameter, state.exp_avg_sq()));
  state.step(state.step() + 1);
  return state;
}

void step_batches(const AdamWOptions& options, const Batches& batches, double gradient_scale) {
  for (const auto& [key, batch] : batches) {
    batch.scale_gradients(gradient_scale);
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

cpu::AdamWPiece piece_of(const at::Tensor& parameter, const AdamWParamState& state, const cpu::AdamWFactors& factors) {
  return {factors,
          {writable(parameter), parameter.grad().const_data_ptr<float>(), writable(state.exp_avg()),
           writable(state.exp_avg_sq()), parameter.numel()}};
}

}  // namespace

void fused_adamw_step(Optimizer& optimizer, OptimizerParamGroup& group, double gradient_scale) {
  const auto& options = static_cast<const AdamWOptions&>(group.options());
  TORCH_CHECK_VALUE(!options.amsgrad(), "amsgrad: is not supported by the fused step");
  const auto [beta1, beta2] = options.betas();
  const cpu::AdamWHyperparameters hyperparameters{options.lr(), beta1, beta2, options.eps(), options.weight_decay()};
  std::vector<cpu::AdamWPiece> pieces;
  Batches batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) {
      continue;
    }
    const AdamWParamState& state = adamw_state(optimizer, parameter);  // An empty parameter also counts its steps.
    if (has_own_kernel(parameter)) {
      pieces.push_back(piece_of(parameter, state, cpu::adamw_factors(hyperparameters, state.step(), gradient_scale)));
    } else if (takes_part(parameter)) {
      Batch& batch = batch_of(batches, parameter, state.step());
      batch.first.push_back(state.exp_avg());
      batch.second.push_back(state.exp_avg_sq());
    }
  }
  cpu::step_pieces(pieces);
  step_batches(options, batches, gradient_scale);
}

namespace {

constexpr int64_t kFirstStep = 0;
constexpr int64_t kLaterStep = 1;

void step_batches(const SGDOptions& options, const Batches& batches, double gradient_scale) {
  for (const auto& [key, batch] : batches) {
    batch.scale_gradients(gradient_scale);
    at::_fused_sgd_(batch.parameters, batch.gradients, batch.first, options.weight_decay(), options.momentum(),
                    options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                    /*is_first_step=*/std::get<2>(key) == kFirstStep);
  }
}

// The parameter's momentum, and whether it is new: zeros. Undefined without momentum.
struct MomentumBuffer {
  at::Tensor tensor;
  bool is_new = false;
};

MomentumBuffer momentum_of(Optimizer& optimizer, const at::Tensor& parameter, const SGDOptions& options) {
  if (options.momentum() == 0) {
    return {};
  }
  auto& state = state_of<SGDParamState>(optimizer, parameter);
  const bool is_new = !state.momentum_buffer().defined();
  state.momentum_buffer(is_new ? zeros_for(parameter) : in_order_of(parameter, state.momentum_buffer()));
  return {state.momentum_buffer(), is_new};
}

void step_group(torch::optim::SGD& optimizer, OptimizerParamGroup& group, double gradient_scale) {
  const auto& options = static_cast<const SGDOptions&>(group.options());
  const cpu::SgdHyperparameters hyperparameters{options.lr(), options.weight_decay(), options.momentum(),
                                                options.dampening(), options.nesterov()};
  std::vector<cpu::SgdPiece> pieces;
  Batches batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) {
      continue;
    }
    const auto [momentum, is_new] = momentum_of(optimizer, parameter, options);
    if (has_own_kernel(parameter)) {
      pieces.push_back({cpu::sgd_factors(hyperparameters, is_new ? 1 : 2, gradient_scale),
                        {writable(parameter), parameter.grad().const_data_ptr<float>(),
                         momentum.defined() ? writable(momentum) : nullptr, parameter.numel()}});
    } else if (takes_part(parameter)) {
      Batch& batch = batch_of(batches, parameter, is_new ? kFirstStep : kLaterStep);
      if (momentum.defined()) {
        batch.first.push_back(momentum);
      }
    }
  }
  cpu::step_pieces(pieces);
  step_batches(options, batches, gradient_scale);
}

// Whether both tensors, of equal sizes, have their elements in the same order of memory. The stride of a dimension of
// one element has no effect, and autograd leaves it as it comes.
bool have_equal_strides(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) != 1 && a.stride(dim) != b.stride(dim)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool can_step_fused(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  return !gradient.defined() ||
         (parameter.is_floating_point() && parameter.layout() == at::kStrided && gradient.layout() == at::kStrided &&
          parameter.is_non_overlapping_and_dense() && gradient.scalar_type() == parameter.scalar_type() &&
          gradient.device() == parameter.device() && have_equal_strides(gradient, parameter));
}

void fused_step(torch::optim::AdamW& optimizer, double gradient_scale) {
  const at::NoGradGuard no_grad;
  for (OptimizerParamGroup& group : optimizer.param_groups()) {
    fused_adamw_step(optimizer, group, gradient_scale);
  }
}

void fused_step(torch::optim::SGD& optimizer, double gradient_scale) {
  const at::NoGradGuard no_grad;
  for (OptimizerParamGroup& group : optimizer.param_groups()) {
    step_group(optimizer, group, gradient_scale);
  }
}

void scale_gradients(Optimizer& optimizer, double factor) {
  if (factor == 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) {
        parameter.mutable_grad().mul_(factor);
      }
    }
  }
}

bool can_step_fused(Optimizer& optimizer) {
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!can_step_fused(parameter)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace narrowcast::optim
