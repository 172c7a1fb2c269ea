// LibTorch's optimizers as the trainer configures them, and their state as tensors by name.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/train/checkpoint/manifest.h"

namespace narrowcast::training {

// The kinds of optimizers.
enum class OptimizerKind { kAdamW, kSgd };

// "adamw" or "sgd"; anything else throws c10::ValueError.
OptimizerKind parse_optimizer(const std::string& name);

// The kind's name.
std::string to_string(OptimizerKind kind);

// All names, for people: "adamw or sgd".
std::string optimizer_names();

// The optimizer's options except the learning rate.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double weight_decay = 0.1;  // >= 0; only for parameters with two or more dimensions, so not for biases and norms
  double momentum = 0;        // of SGD, 0..1 (1 excluded); not used by AdamW
  double beta1 = 0.9;         // of AdamW, 0..1 (1 excluded)
  double beta2 = 0.99;        // of AdamW, 0..1 (1 excluded): gradients of small models are noisy but stationary
  double epsilon = 1e-8;      // of AdamW, > 0
};

// Throws c10::ValueError for an option that is out of its range or that the kind would ignore.
void check_optimizer_options(const OptimizerOptions& options);

// The parameters that require a gradient, in the module's order.
std::vector<at::Tensor> trained_parameters(const torch::nn::Module& module);

// An optimizer over the trained parameters of `module`, at learning rate 0 until set_learning_rate. Its steps are fused
// (trainer/ddp/optimization/fused_step.h); its state is LibTorch's. Throws as check_optimizer_options does.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const OptimizerOptions& options);

// The next step of an optimizer from make_optimizer uses `scale` times the gradients, for example to clip them; it may
// leave the gradients themselves unscaled. Throws c10::ValueError for another optimizer.
void scale_next_step(torch::optim::Optimizer& optimizer, double scale);

// The state of each parameter of `module` that has taken a step, under its first name in the module:
//   NAME.exp_avg, NAME.exp_avg_sq, NAME.step (int64)  of AdamW
//   NAME.momentum_buffer                              of SGD with momentum
// The tensors are the optimizer's own. Throws c10::ValueError for an optimizer that make_optimizer did not make.
checkpoint::TensorMap optimizer_state(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module);

// Copies such tensors into an optimizer of the same kind that has taken no step. Throws CorruptInputError naming a
// tensor that is missing, unknown, or of another shape or dtype than its parameter, before anything is changed.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                          const checkpoint::TensorMap& state);

}  // namespace narrowcast::training
