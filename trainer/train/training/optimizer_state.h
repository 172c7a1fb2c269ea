// What an optimizer has learned, as tensors by name.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

#include "trainer/train/checkpoint/content.h"

namespace narrowcast::training {

// For each parameter of `module` that has taken a step, under its first name in the module:
//   NAME.exp_avg, NAME.exp_avg_sq, NAME.step (int64)  of AdamW
//   NAME.momentum_buffer                              of SGD with momentum
// The tensors are the optimizer's own. Throws c10::ValueError for another optimizer than those of make_optimizer.
checkpoint::TensorMap optimizer_state(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module);

// Copies such tensors into an optimizer of the same kind that has taken no step. Throws CorruptInputError naming a
// tensor that is missing, unknown, or of another shape or dtype than its parameter, before anything is changed.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                          const checkpoint::TensorMap& state);

}  // namespace narrowcast::training
