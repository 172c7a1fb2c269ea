#include "trainer/ddp/autograd/reduction_counter.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>

namespace narrowcast {

using torch::autograd::variable_list;

struct ReductionCounter::State {
  std::atomic<bool> armed = false;
  std::atomic<int64_t> count = 0;
};

ReductionCounter::ReductionCounter(const std::vector<at::Tensor>& parameters) : state_(std::make_shared<State>()) {
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
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

ReductionCounter::~ReductionCounter() {
  for (const auto& [accumulator, key] : hooks_) {
    accumulator->del_post_hook(key);
  }
}

void ReductionCounter::arm() { state_->armed = true; }

int64_t ReductionCounter::count() const { return state_->count; }

void ReductionCounter::set_count(int64_t count) { state_->count = count; }

}  // namespace narrowcast
