#include "trainer/ddp/accumulator_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>

namespace narrowcast {

// The accumulators of the parameters, which only who needs them keeps alive, and the hook's key in each.
struct AccumulatorHooks::List {
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  std::vector<std::pair<Accumulator, uintptr_t>> entries;
};

AccumulatorHooks::AccumulatorHooks(const std::vector<at::Tensor>& parameters,
                                   const std::function<void(size_t)>& on_gradient)
    : list_(std::make_unique<List>()) {
  using torch::autograd::variable_list;
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
    const auto call = [on_gradient, i](const variable_list& outputs, const variable_list& /*inputs*/) {
      on_gradient(i);
      return outputs;
    };
    const uintptr_t key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(call));
    list_->entries.emplace_back(std::move(accumulator), key);
  }
}

AccumulatorHooks::~AccumulatorHooks() {
  for (const auto& [accumulator, key] : list_->entries) {
    accumulator->del_post_hook(key);
  }
}

}  // namespace narrowcast
