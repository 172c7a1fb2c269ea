// The optimizers as the trainer configures them, and their state as tensors by name.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/train/checkpoint/manifest.h"

namespace narrowcast::training {

// The kinds of optimizers.
enum class OptimizerKind { kAdamW, kSgd, kMuon };

// "adamw", "sgd" or "muon"; anything else throws c10::ValueError.
OptimizerKind parse_optimizer(const std::string& name);

// The kind's name.
std::string to_string(OptimizerKind kind);

// All names, for people: "adamw, sgd or muon".
std::string optimizer_names();

// The momentum of a kind, if none is given.
double usual_momentum(OptimizerKind kind);

// The optimizer's options except learning rates.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double weight_decay = 0.1;  // >= 0; only for parameters with two or more dimensions, so not for biases and norms
  double momentum = 0;        // of SGD and Muon, 0..1 (1 excluded); not used by AdamW
  double beta1 = 0.9;         // of AdamW, 0..1 (1 excluded)
  double beta2 = 0.99;        // of AdamW, 0..1 (1 excluded): gradients of small models are noisy but stationary
  double epsilon = 1e-8;      // of AdamW, > 0

  // With Muon: names of matrices, or of modules with matrices, that AdamW steps besides those that it steps anyway.
  std::vector<std::string> adamw_parameters = {};
};

// Throws c10::ValueError for an option that is out of its range or that the kind would ignore.
void check_optimizer_options(const OptimizerOptions& options);

// The parameters that require a gradient, in the module's order.
std::vector<at::Tensor> trained_parameters(const torch::nn::Module& module);

// The trained parameters that Muon orthogonalises, in the module's order: those with two dimensions, except a model's
// embeddings and output layers (Model::embeddings_and_heads) and those of `adamw_parameters`. Throws c10::ValueError if
// there is none, and for a name that excludes none.
std::vector<at::Tensor> muon_matrices(const torch::nn::Module& module,
                                      const std::vector<std::string>& adamw_parameters);

// An optimizer over the trained parameters of `module`, at learning rate 0 until set_learning_rates. The steps of AdamW
// and SGD are fused (trainer/ddp/optimization/fused_step.h); their state is LibTorch's. Muon is narrowcast/muon.h's,
// with the scale of AdamW's updates (kMatchRmsAdamW), and AdamW for the other parameters. Throws as
// check_optimizer_options and muon_matrices do.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& module,
                                                        const OptimizerOptions& options);

// Sets the learning rate of all parameters, and with Muon the rate of those that AdamW steps.
void set_learning_rates(torch::optim::Optimizer& optimizer, double learning_rate, double of_adamw);

// The next step of an optimizer from make_optimizer uses `scale` times the gradients, for example to clip them; it may
// leave the gradients themselves unscaled. Throws c10::ValueError for another optimizer.
void scale_next_step(torch::optim::Optimizer& optimizer, double scale);

// The state of each parameter of `module` that has taken a step, under its first name in the module:
//   NAME.exp_avg, NAME.exp_avg_sq, NAME.step (int64)  of AdamW
//   NAME.momentum_buffer                              of SGD with momentum, and of Muon's matrices
// The tensors are the optimizer's own. Throws c10::ValueError for an optimizer that make_optimizer did not make.
checkpoint::TensorMap optimizer_state(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module);

// Copies such tensors into an optimizer of the same kind that has taken no step. Throws CorruptInputError naming a
// tensor that is missing, unknown, or of another shape or dtype than its parameter, before anything is changed.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                          const checkpoint::TensorMap& state);

}  // namespace narrowcast::training
