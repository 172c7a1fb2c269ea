#include "trainer/ddp/reducer/bucket_size.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include <narrowcast/ddp_options.h>

namespace narrowcast {
namespace {

constexpr double kSmallSizesMb[] = {1, 2, 3, 6, 12};  // In addition to the default of DdpOptions.
constexpr double kAsGood = 1.01;                      // Measurements are not more exact.

}  // namespace

double BackwardPass::seconds() const {
  return ready_seconds.empty() ? 0 : *std::max_element(ready_seconds.begin(), ready_seconds.end());
}

std::vector<double> bucket_sizes(int64_t gradient_bytes) {
  const double whole = std::ceil(static_cast<double>(gradient_bytes) / kBytesOfMib);
  std::vector<double> sizes(std::begin(kSmallSizesMb), std::end(kSmallSizesMb));
  sizes.push_back(DdpOptions().bucket_cap_mb().value());
  std::erase_if(sizes, [=](double size) { return size >= whole; });
  sizes.push_back(std::max(1.0, whole));
  return sizes;
}

std::vector<size_t> ready_order(const std::vector<double>& ready_seconds) {
  std::vector<size_t> order(ready_seconds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t parameter) { return ready_seconds[parameter]; });
  return order;
}

double seconds_until_averaged(const BucketIndices& buckets, const BackwardPass& pass, const ExchangeSeconds& exchange) {
  double ready = 0;     // This bucket and those before it are ready.
  double averaged = 0;  // The buckets before it are averaged.
  for (const std::vector<size_t>& bucket : buckets) {
    int64_t numel = 0;
    for (const size_t parameter : bucket) {
      ready = std::max(ready, pass.ready_seconds[parameter]);
      numel += pass.numel[parameter];
    }
    averaged = std::max(averaged, ready) + exchange(numel);
  }
  return averaged;
}

BucketChoice choose_bucket_size(const std::vector<BucketLayout>& layouts, const BackwardPass& pass,
                                const ExchangeSeconds& exchange) {
  BucketChoice choice{.backward_seconds = pass.seconds()};
  std::vector<double> seconds;
  for (const BucketLayout& layout : layouts) {
    seconds.push_back(seconds_until_averaged(layout.buckets, pass, exchange));
    choice.sizes.push_back({.cap_mb = layout.cap_mb,
                            .buckets = std::ssize(layout.buckets),
                            .seconds_left = seconds.back() - choice.backward_seconds});
  }
  const double limit = kAsGood * *std::min_element(seconds.begin(), seconds.end());
  const auto largest = std::find_if(seconds.rbegin(), seconds.rend(), [=](double value) { return value <= limit; });
  choice.chosen = seconds.rend() - largest - 1;
  return choice;
}

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

}  // namespace narrowcast
