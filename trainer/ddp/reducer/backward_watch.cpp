#include "trainer/ddp/reducer/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

namespace narrowcast {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

// The accumulators of the parameters, which live only as long as somebody refers to them, and the key of the hook in
// each.
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

struct GradientTimes::State {
  bool watches = false;
  std::optional<Clock::time_point> first = std::nullopt;  // First gradient of this pass.
  std::vector<std::optional<double>> of_pass;
  std::vector<std::optional<double>> least;  // Least seconds of the previous passes.
  std::vector<double> seconds;               // The same, with 0 for parameters that no pass reached.
  int64_t passes = 0;

  void note(size_t parameter) {
    if (!watches) {
      return;
    }
    const auto now = Clock::now();
    first = first.value_or(now);
    of_pass[parameter] = std::chrono::duration<double>(now - *first).count();
  }
};

GradientTimes::GradientTimes(const std::vector<at::Tensor>& parameters)
    : state_(std::make_shared<State>()), hooks_(parameters, [state = state_](size_t i) { state->note(i); }) {
  state_->of_pass.resize(parameters.size());
  state_->least.resize(parameters.size());
  state_->seconds.resize(parameters.size());
}

void GradientTimes::begin_pass() {
  std::fill(state_->of_pass.begin(), state_->of_pass.end(), std::nullopt);
  state_->first.reset();
  state_->watches = true;
}

void GradientTimes::end_pass() {
  State& state = *state_;
  if (!std::exchange(state.watches, false) || !state.first.has_value()) {
    return;
  }
  ++state.passes;
  for (size_t i = 0; i < state.of_pass.size(); ++i) {
    if (state.of_pass[i].has_value()) {
      state.least[i] = std::min(state.least[i].value_or(*state.of_pass[i]), *state.of_pass[i]);
      state.seconds[i] = *state.least[i];
    }
  }
}

int64_t GradientTimes::passes() const { return state_->passes; }

const std::vector<double>& GradientTimes::seconds() const { return state_->seconds; }

struct BackwardWatch::State : std::enable_shared_from_this<State> {
  explicit State(size_t parameters) : reached(parameters), expected(parameters, true) {}

  bool armed = false;
  bool running = false;
  std::atomic<int64_t> count = 0;
  std::vector<bool> reached;
  std::vector<bool> expected;

  void note(size_t parameter) {
    reached[parameter] = true;
    if (armed) {
      armed = false;
      ++count;
      begin();
    } else if (!running) {
      begin();  // The last gradients came from a pass inside this one, which has ended.
    }
  }

  // A callback queued by a callback runs after all callbacks that the pass queued before its end, including the
  // Reducer's. After an exception, later callbacks do not run.
  void begin() {
    running = true;
    auto& engine = torch::autograd::Engine::get_default_engine();
    engine.queue_callback(
        [self = shared_from_this(), &engine] { engine.queue_callback([self] { self->running = false; }); });
  }
};

BackwardWatch::BackwardWatch(const std::vector<at::Tensor>& parameters)
    : state_(std::make_shared<State>(parameters.size())),
      hooks_(parameters, [state = state_](size_t parameter) { state->note(parameter); }) {}

void BackwardWatch::arm() {
  state_->armed = true;
  state_->running = false;
  std::fill(state_->reached.begin(), state_->reached.end(), false);
}

int64_t BackwardWatch::count() const { return state_->count; }

void BackwardWatch::set_count(int64_t count) { state_->count = count; }

bool BackwardWatch::has_not_ended() const { return state_->running; }

std::vector<size_t> BackwardWatch::unreached() const {
  std::vector<size_t> indices;
  for (size_t i = 0; i < state_->reached.size(); ++i) {
    if (state_->expected[i] && !state_->reached[i]) {
      indices.push_back(i);
    }
  }
  return indices;
}

void BackwardWatch::expect_reached() { state_->expected = state_->reached; }

}  // namespace narrowcast
