#include "trainer/train/training/optimizer.h"

#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <utility>

namespace narrowcast::training {
namespace {

void check_fraction(const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, name, ": must be at least 0 and less than 1, but is ", value);
}

// Parameters that decay, and those that do not.
std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> split_by_decay(const torch::nn::Module& module) {
  std::vector<at::Tensor> decaying;
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : module.parameters()) {
    (parameter.dim() >= 2 ? decaying : others).push_back(parameter);
  }
  return {decaying, others};
}

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make(const torch::nn::Module& module, Options options) {
  auto [decaying, others] = split_by_decay(module);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(decaying), std::make_unique<Options>(options));
  groups.emplace_back(std::move(others), std::make_unique<Options>(options));
  auto optimizer = std::make_unique<Optimizer>(std::move(groups), options);
  // Only now: LibTorch 2.15 takes a group's option that has the default value of its type for one that was not given.
  static_cast<Options&>(optimizer->param_groups()[1].options()).weight_decay(0);
  return optimizer;
}

}  // namespace

OptimizerKind parse_optimizer(const std::string& name) {
  if (name == "adamw") {
    return OptimizerKind::kAdamW;
  }
  TORCH_CHECK_VALUE(name == "sgd", "optimizer: unknown name '", name, "'; known: adamw, sgd");
  return OptimizerKind::kSgd;
}

void check_optimizer_options(const OptimizerOptions& options) {
  TORCH_CHECK_VALUE(options.weight_decay >= 0, "weight_decay: must be at least 0, but is ", options.weight_decay);
  check_fraction("momentum", options.momentum);
  check_fraction("beta1", options.beta1);
  check_fraction("beta2", options.beta2);
  TORCH_CHECK_VALUE(options.epsilon > 0, "epsilon: must be positive, but is ", options.epsilon);
  TORCH_CHECK_VALUE(options.kind == OptimizerKind::kSgd || options.momentum == 0,
                    "momentum: has no effect with adamw, but is ", options.momentum);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const OptimizerOptions& options) {
  check_optimizer_options(options);
  if (options.kind == OptimizerKind::kSgd) {
    return make<torch::optim::SGD>(
        module, torch::optim::SGDOptions(0).momentum(options.momentum).weight_decay(options.weight_decay));
  }
  return make<torch::optim::AdamW>(module, torch::optim::AdamWOptions(0)
                                               .betas(std::make_tuple(options.beta1, options.beta2))
                                               .eps(options.epsilon)
                                               .weight_decay(options.weight_decay));
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double learning_rate) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(learning_rate);
  }
}

// A GPU is waited for once.
bool gradients_are_finite(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> bounds;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() && gradient.numel() > 0) {
      const auto [least, greatest] = gradient.aminmax();  // Both are NaN if one element is.
      bounds.push_back(least);
      bounds.push_back(greatest);
    }
  }
  return bounds.empty() || at::stack(bounds).isfinite().all().item<bool>();
}

double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0, "clip_grad_norm: must be positive, but is ", max_norm);
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm);
}

}  // namespace narrowcast::training
