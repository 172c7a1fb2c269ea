// What data-parallel training must know of a module: its parameters and buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/export.h>

namespace torch::jit {
struct Module;
}

namespace narrowcast {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// In the module's own order. A tensor registered twice (tied weights) is listed
// once, under its first name.
struct NARROWCAST_EXPORT ModuleState {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;

  // The parameters that get gradients.
  std::vector<NamedTensor> trainable() const;
};

// Without the names.
NARROWCAST_EXPORT std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named);

// Throws c10::ValueError for an embedding that makes sparse gradients, which
// buckets cannot hold.
NARROWCAST_EXPORT ModuleState module_state(const std::shared_ptr<torch::nn::Module>& module);
NARROWCAST_EXPORT ModuleState module_state(const torch::jit::Module& module);

// Names, dtypes, shapes, strides and kinds of device, to compare between ranks.
NARROWCAST_EXPORT std::vector<NamedValue> describe(const ModuleState& state);

// Throws c10::ValueError naming the parameter unless the state can be trained with
// `group`: at least one parameter gets gradients, and all that do are on one
// device, of a kind that the group's backend moves.
NARROWCAST_EXPORT void check_trainable(const ModuleState& state, const ProcessGroupPtr& group);

}  // namespace narrowcast
