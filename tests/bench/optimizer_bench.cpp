// The trainer's optimizer steps on the CPU, and the norm of gradients, beside LibTorch's. All take turns on their own
// copies of the parameters of a GPT with 10.7 million parameters. The ratio of two times is the median of the rounds'
// ratios, which a busy machine disturbs little. Exit code 1 if a target is missed.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <absl/flags/flag.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/common/median.h"
#include "tests/bench/machine_watch/machine_watch.h"
#include "trainer/base/program/command_line.h"
#include "trainer/ddp/optimization/fused_step.h"
#include "trainer/ddp/optimization/gradients.h"

ABSL_FLAG(int64_t, rounds, 30, "measured turns of each step, after three to warm up");
ABSL_FLAG(int64_t, threads, 1, "threads of each step");

namespace narrowcast {
namespace {

using Clock = std::chrono::steady_clock;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int64_t kWarmUp = 3;
constexpr double kStepTarget = 2;  // Our steps must be this many times as fast as LibTorch's optimizers,
constexpr double kNormTarget = 1;  // and the norm as fast as LibTorch's two passes.

// The parameters of a GPT with 6 layers, width 384, a context of 256 and 65 characters, with gradients.
std::vector<at::Tensor> make_parameters() {
  constexpr int64_t kWidth = 384;
  std::vector<std::vector<int64_t>> shapes = {{65, kWidth}, {256, kWidth}, {kWidth}, {kWidth}};
  for (int64_t layer = 0; layer < 6; ++layer) {
    shapes.insert(shapes.end(), {{3 * kWidth, kWidth},
                                 {3 * kWidth},
                                 {kWidth, kWidth},
                                 {kWidth},
                                 {4 * kWidth, kWidth},
                                 {4 * kWidth},
                                 {kWidth, 4 * kWidth},
                                 {kWidth},
                                 {kWidth},
                                 {kWidth},
                                 {kWidth},
                                 {kWidth}});
  }
  std::vector<at::Tensor> parameters;
  for (const std::vector<int64_t>& shape : shapes) {
    parameters.push_back(at::randn(shape).mul_(0.02).requires_grad_());
    parameters.back().mutable_grad() = at::randn(shape).mul_(1e-3);
  }
  return parameters;
}

int64_t elements_of(const std::vector<at::Tensor>& parameters) {
  int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) elements += parameter.numel();
  return elements;
}

// An operation to measure, and its times so far.
struct Entry {
  std::string name;
  std::function<void()> run;
  std::vector<double> milliseconds = {};
};

void take_turns(std::vector<Entry>& entries) {
  for (int64_t round = 0; round < kWarmUp + absl::GetFlag(FLAGS_rounds); ++round) {
    for (Entry& entry : entries) {
      const auto begin = Clock::now();
      entry.run();
      const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
      if (round >= kWarmUp) entry.milliseconds.push_back(time.count());
    }
  }
}

double median_ratio(const Entry& slow, const Entry& fast) {
  std::vector<double> ratios;
  for (size_t round = 0; round < fast.milliseconds.size(); ++round) {
    ratios.push_back(slow.milliseconds[round] / fast.milliseconds[round]);
  }
  return median(std::move(ratios));
}

// Prints how much slower the others are than the first entry, and checks the second one, LibTorch's usual functions.
bool compare(std::vector<Entry> entries, double target) {
  take_turns(entries);
  const Entry& ours = entries.front();
  std::printf("  %-44s %8.2f ms\n", ours.name.c_str(), median(ours.milliseconds));
  for (size_t i = 1; i < entries.size(); ++i) {
    std::printf("  %-44s %8.2f ms, %.2f times ours\n", entries[i].name.c_str(), median(entries[i].milliseconds),
                median_ratio(entries[i], ours));
  }
  const bool met = median_ratio(entries[1], ours) >= target;
  std::printf("  %s: target %.1f times\n", met ? "PASS" : "FAIL", target);
  return met;
}

template <class Optimizer, class Options>
std::function<void()> steps_of(const Options& options) {
  const auto optimizer = std::make_shared<Optimizer>(make_parameters(), options);
  return [optimizer] { optimizer->step(); };
}

// LibTorch's fused kernel for AdamW, on a list of tensors.
std::function<void()> fused_adamw(const AdamWOptions& options) {
  const std::vector<at::Tensor> parameters = make_parameters();
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> squares;
  std::vector<at::Tensor> steps;
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(parameter.grad());
    averages.push_back(at::zeros_like(parameter.grad()));
    squares.push_back(at::zeros_like(parameter.grad()));
    steps.push_back(at::zeros({}));
  }
  return [=] {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& step : steps) step.add_(1);
    at::_fused_adamw_(parameters, gradients, averages, squares, /*max_exp_avg_sqs=*/{}, steps, options.lr(), 0.9, 0.99,
                      options.weight_decay(), options.eps(), /*amsgrad=*/false, /*maximize=*/false);
  };
}

std::function<void()> fused_sgd(const SGDOptions& options) {
  const std::vector<at::Tensor> parameters = make_parameters();
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> momenta;
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(parameter.grad());
    momenta.push_back(at::zeros_like(parameter.grad()));
  }
  return [=] {
    const at::NoGradGuard no_grad;
    at::_fused_sgd_(parameters, gradients, momenta, options.weight_decay(), options.momentum(), options.lr(),
                    /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
  };
}

int run() {
  at::set_num_threads(static_cast<int>(absl::GetFlag(FLAGS_threads)));
  const bench::MachineWatch watch;
  const std::vector<at::Tensor> parameters = make_parameters();
  std::printf("%.1f million parameters, %d threads\n", 1e-6 * static_cast<double>(elements_of(parameters)),
              at::get_num_threads());
  const AdamWOptions adamw = AdamWOptions(1e-6).betas({0.9, 0.99}).weight_decay(0.1);
  const SGDOptions sgd = SGDOptions(1e-6).momentum(0.9).weight_decay(0.1);
  bool met = compare({{"AdamW: the trainer's", steps_of<optim::Fused<AdamW>>(adamw)},
                      {"torch::optim::AdamW", steps_of<AdamW>(adamw)},
                      {"at::_fused_adamw_", fused_adamw(adamw)}},
                     kStepTarget);
  met = compare({{"SGD with momentum: the trainer's", steps_of<optim::Fused<SGD>>(sgd)},
                 {"torch::optim::SGD", steps_of<SGD>(sgd)},
                 {"at::_fused_sgd_", fused_sgd(sgd)}},
                kStepTarget) &&
        met;
  // Before the norm, LibTorch's users look for elements that are not finite; our norm shows them.
  met = compare({{"norm and finiteness: gradient_norm", [&] { gradient_norm(parameters).item<double>(); }},
                 {"aminmax and torch::nn::utils::clip_grad_norm_",
                  [&] {
                    for (const at::Tensor& parameter : parameters) (void)parameter.grad().aminmax();
                    torch::nn::utils::clip_grad_norm_(parameters, 1e9);
                  }},
                 {"torch::nn::utils::clip_grad_norm_", [&] { torch::nn::utils::clip_grad_norm_(parameters, 1e9); }}},
                kNormTarget) &&
        met;
  return bench::exit_code(met, watch);
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_optimizer_bench";
  description.version = "0";
  description.summary = "Times optimizer steps beside LibTorch's, and checks the target.";
  description.usage = "narrowcast_optimizer_bench [flags]";
  description.groups = {{"Measurement", {"rounds", "threads"}}};
  description.examples = {{"the targets' own case", "narrowcast_optimizer_bench"}};
  description.exit_codes = {{0, "the targets were met, or the machine was busy"}, {1, "a target was missed"}};
  return description;
}

}  // namespace
}  // namespace narrowcast

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::description(), argc, argv,
                                       [](const auto&) { return narrowcast::run(); });
}
