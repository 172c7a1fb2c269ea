// Notices that parameters are no longer those whose gradients a Reducer averages.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/module_state.h>

namespace narrowcast {

// A Reducer hears of gradients through the accumulators that the parameters had when it was made. A conversion of a
// parameter to another dtype or device gives it another accumulator, and its gradient is never averaged. Neither is the
// gradient of a parameter that takes the place of another one in its module, or that requires a gradient only later.
class ParameterWatch {
 public:
  // `state`: of a module, as it is now.
  explicit ParameterWatch(const ModuleState& state);

  // Returns which parameter is not as it was, and how; empty if all are.
  std::string difference() const;

 private:
  struct Watched {
    NamedTensor parameter;
    std::shared_ptr<torch::autograd::Node> accumulator;  // Null for a parameter that gets no gradient.
    at::TensorOptions options;
    std::vector<int64_t> sizes;
  };
  std::string difference_in_module() const;

  std::vector<Watched> watched_;
  const std::function<std::vector<NamedTensor>()> parameters_now_;
};

}  // namespace narrowcast
