// The optimizers of LibTorch whose steps are elementwise, and the state that they keep for each parameter.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace narrowcast::sharding {

// The state of one parameter, or of a piece of it.
struct ParameterState {
  std::optional<int64_t> step = std::nullopt;  // The number of steps, if the optimizer counts them.
  std::vector<at::Tensor> tensors = {};        // By OptimizerKind::tensors; undefined where there is none.
};

struct OptimizerKind {
  const char* name;
  bool counts_steps;
  std::vector<std::string> tensors;  // The names of the state's tensors, each as large as the parameter.
  // Whether a state has that tensor once a step was taken with these options.
  bool (*needs)(const torch::optim::OptimizerOptions& options, size_t tensor);
  ParameterState (*read)(const torch::optim::OptimizerParamState&);
  std::unique_ptr<torch::optim::OptimizerParamState> (*make)(const ParameterState&);
};

// The kind of an optimizer, or of a class derived from it, whose steps must be elementwise as well; null for a class
// that is none of these.
const OptimizerKind* kind_of(const torch::optim::Optimizer& optimizer);

// The names of all kinds, for people.
std::string kind_names();

}  // namespace narrowcast::sharding
