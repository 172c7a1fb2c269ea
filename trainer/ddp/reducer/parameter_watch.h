// Notices that a module's parameters are no longer those whose gradients a Reducer averages.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <string>
#include <vector>

#include <narrowcast/module_state.h>

namespace narrowcast {

// A Reducer is notified of gradients through the accumulators that the parameters had when it was created. A conversion
// of a parameter to another dtype or device creates another accumulator, so that its gradient is never averaged. The
// same holds for a parameter that replaces another one in its module, or that requires a gradient only later.
class ParameterWatch {
 public:
  // `state`: the present state of a module.
  explicit ParameterWatch(const ModuleState& state);

  // Describes the first parameter that has changed, and how; empty if none has.
  std::string difference() const;

 private:
  // The kind of pointer depends on LibTorch's version.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  struct Watched {
    NamedTensor parameter;
    Accumulator accumulator;  // Null for a parameter that gets no gradient.
    at::TensorOptions options;
    std::vector<int64_t> sizes;
  };
  std::string difference_in_module() const;

  std::vector<Watched> watched_;
  const std::function<std::vector<NamedTensor>()> parameters_now_;
};

}  // namespace narrowcast
