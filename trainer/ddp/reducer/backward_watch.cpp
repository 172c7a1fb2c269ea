#include "trainer/ddp/reducer/backward_watch.h"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <atomic>

namespace narrowcast {

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
