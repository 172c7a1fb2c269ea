// The parameters and buffers of a module, for data-parallel training.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/consensus.h>
#include <narrowcast/export.h>

namespace torch::jit {
struct Module;
}

namespace NARROWCAST_EXPORT narrowcast {

// A parameter or a buffer under its name in the module, e.g. "layers.0.weight".
using NamedTensor = hooks::NamedParameter;

// A module's parameters and buffers in its own order. A tensor registered twice (tied weights) is listed
// once, under its first name.
struct ModuleState {
  std::vector<NamedTensor> parameters;  // includes parameters that get no gradients
  std::vector<NamedTensor> buffers;     // of any dtype
  // Returns the value that `parameters` would have if the state was taken now. Empty if they never change.
  std::function<std::vector<NamedTensor>()> parameters_now = nullptr;

  // The parameters that get gradients.
  std::vector<NamedTensor> trainable() const;
};

// The tensors without their names, in the same order; they are shared, not copied.
std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named);

// The state of a torch::nn module. Throws c10::ValueError for a null module and for an embedding with sparse gradients,
// which buckets cannot hold. Throws c10::ValueError naming a parameter or buffer that is sparse or quantised, which
// cannot be broadcast.
ModuleState module_state(const std::shared_ptr<torch::nn::Module>& module);
// The state of a TorchScript module. Throws c10::ValueError naming a parameter or buffer that is sparse or quantised.
ModuleState module_state(const torch::jit::Module& module);

// Names, dtypes, shapes, strides and kinds of device, for check_equal_on_all_ranks.
std::vector<NamedValue> describe(const ModuleState& state);

// Throws c10::ValueError naming the parameter unless the state can be trained with `group`. At least one parameter must
// get gradients, and all that do must be on one device, of a kind that the group's backend moves.
void check_trainable(const ModuleState& state, const ProcessGroupPtr& group);

}  // namespace narrowcast
