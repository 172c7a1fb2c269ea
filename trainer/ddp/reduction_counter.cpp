#include "trainer/ddp/reduction_counter.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <utility>

namespace narrowcast {

using torch::autograd::variable_list;

struct ReductionCounter::State {
  std::atomic<bool> armed = false;
  std::atomic<int64_t> count = 0;
};

// The accumulators of the parameters, which only who needs them keeps alive, and the hook's key in each.
struct ReductionCounter::Hooks {
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  std::vector<std::pair<Accumulator, uintptr_t>> list;
};

ReductionCounter::ReductionCounter(const std::vector<at::Tensor>& parameters)
    : state_(std::make_shared<State>()), hooks_(std::make_unique<Hooks>()) {
  const auto count_once = [state = state_](const variable_list& outputs, const variable_list& /*inputs*/) {
    if (state->armed.exchange(false)) {
      ++state->count;
    }
    return outputs;
  };
  for (const at::Tensor& parameter : parameters) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    const uintptr_t key =
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(count_once));
    hooks_->list.emplace_back(std::move(accumulator), key);
  }
}

ReductionCounter::~ReductionCounter() {
  for (const auto& [accumulator, key] : hooks_->list) {
    accumulator->del_post_hook(key);
  }
}

void ReductionCounter::arm() { state_->armed = true; }

int64_t ReductionCounter::count() const { return state_->count; }

void ReductionCounter::set_count(int64_t count) { state_->count = count; }

}  // namespace narrowcast
