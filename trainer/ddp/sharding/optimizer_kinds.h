// The optimizers that can be sharded with their state, and the state that they keep for each parameter.
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
  std::vector<std::string> tensors;  // The names of the state's tensors, each as large as the parameter.
  // Whether a state counts the steps that were taken with these options.
  bool (*counts_steps)(const torch::optim::OptimizerOptions& options);
  // Whether a state has that tensor once a step was taken with these options.
  bool (*needs)(const torch::optim::OptimizerOptions& options, size_t tensor);
  ParameterState (*read)(const torch::optim::OptimizerParamState&);
  std::unique_ptr<torch::optim::OptimizerParamState> (*make)(const ParameterState&);
  // The work of a step of a parameter of these sizes, for a fair division of whole parameters. Null if it is the number
  // of elements, because steps are elementwise: then parameters may be cut.
  int64_t (*cost)(const torch::optim::OptimizerOptions& options, at::IntArrayRef sizes) = nullptr;
};

// The kind of an optimizer, or of a class derived from it. If the kind's steps are elementwise, the steps of the class
// must be elementwise as well. Null for a class that is none of these.
const OptimizerKind* kind_of(const torch::optim::Optimizer& optimizer);

// The names of all kinds, and of those whose steps are elementwise, for people.
std::string kind_names();
std::string elementwise_kind_names();

}  // namespace narrowcast::sharding
