// The time of the trainer's optimizer step without shards, with shards, and with shards of shared parameters, in turns,
// for ranks that share a node. Ranks are processes; the time of a step is the slowest rank's. With shards it contains
// the exchange of the new parameters, or the waits for the node's ranks.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <absl/flags/flag.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/learning_rate.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/common/median.h"
#include "tests/bench/machine_watch/machine_watch.h"
#include "tests/support/memory_use.h"
#include "tests/support/ranks.h"
#include "trainer/base/program/command_line.h"
#include "trainer/train/optimization/optimizer.h"

ABSL_FLAG(int64_t, ranks, 4, "processes");
ABSL_FLAG(int64_t, node_size, 0, "number of consecutive ranks that form a node; 0: all ranks do");
ABSL_FLAG(std::string, optimizer, "adamw", "the optimizer: adamw or sgd, with momentum 0.9");
ABSL_FLAG(int64_t, layers, 10, "linear layers of the model");
ABSL_FLAG(int64_t, width, 1024, "inputs and outputs of each layer");
ABSL_FLAG(int64_t, rounds, 40, "measured steps of each kind, after five to warm up");

namespace narrowcast::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUp = 5;

struct Workload {
  int64_t ranks = 0;
  int64_t node_size = 0;
  training::OptimizerOptions optimizer;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t rounds = 0;
};

// A model with gradients, and the trainer's optimizer for it.
struct Training {
  explicit Training(const Workload& workload) {
    at::manual_seed(1);
    for (int64_t layer = 0; layer < workload.layers; ++layer) {
      model->push_back(torch::nn::Linear(workload.width, workload.width));
    }
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::randn_like(parameter) * 1e-3;
    optimizer = training::make_optimizer(*model.ptr(), workload.optimizer);
    set_learning_rate(*optimizer, 1e-3);
  }

  torch::nn::Sequential model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

ShardOptions options_of(const Workload& workload) {
  return ShardOptions().node_size(workload.node_size > 0 ? std::optional(workload.node_size) : std::nullopt);
}

// By Kind, in milliseconds.
enum Kind : size_t { kWhole, kSharded, kShared, kKinds };
using Times = std::array<std::vector<double>, kKinds>;

Times measure(const ProcessGroupPtr& group, const Workload& workload) {
  std::vector<Training> trainings;
  for (size_t kind = 0; kind < kKinds; ++kind) trainings.emplace_back(workload);
  ShardedOptimizer sharded(*trainings[kSharded].optimizer, group, options_of(workload));
  ShardedOptimizer shared(*trainings[kShared].optimizer, group, options_of(workload).share_parameters(true));
  const std::array<std::function<void()>, kKinds> steps = {[&] { trainings[kWhole].optimizer->step(); },
                                                           [&] { sharded.step(); }, [&] { shared.step(); }};
  Times times;
  for (int64_t round = -kWarmUp; round < workload.rounds; ++round) {
    for (size_t turn = 0; turn < kKinds; ++turn) {
      const size_t kind = (turn + static_cast<size_t>(round + kWarmUp)) % kKinds;
      testing::wait_for_ranks(group);
      const auto begin = Clock::now();
      steps.at(kind)();
      const double milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      if (round >= 0) times.at(kind).push_back(milliseconds);
    }
  }
  for (const size_t kind : {kSharded, kShared}) {
    for (size_t i = 0; i < trainings[kind].model->parameters().size(); ++i) {
      TORCH_CHECK(at::equal(trainings[kind].model->parameters()[i], trainings[kWhole].model->parameters()[i]),
                  "the steps with and without shards have different bits");
    }
  }
  for (std::vector<double>& of_kind : times) of_kind = all_reduce_max(group, of_kind);
  return times;
}

// Bytes per parameter of a rank, after two steps: with gradients, and without.
struct Memory {
  double with_gradients = 0;
  double without_gradients = 0;
};

Memory measure_memory(const ProcessGroupPtr& group, const Workload& workload, Kind kind) {
  const auto bytes = [&] {
    testing::wait_for_ranks(group);
    const auto own = static_cast<double>(testing::bytes_of_this_process());
    testing::wait_for_ranks(group);
    return own;
  };
  const double before = bytes();
  Training training(workload);
  std::optional<ShardedOptimizer> sharded;
  if (kind != kWhole) {
    sharded.emplace(*training.optimizer, group, options_of(workload).share_parameters(kind == kShared));
  }
  for (int64_t step = 0; step < 2; ++step) sharded ? sharded->step() : static_cast<void>(training.optimizer->step());
  const auto numel = static_cast<double>(workload.layers * workload.width * (workload.width + 1));
  Memory memory;
  memory.with_gradients = (bytes() - before) / numel;
  for (at::Tensor& parameter : training.model->parameters()) parameter.mutable_grad() = at::Tensor();
  memory.without_gradients = (bytes() - before) / numel;
  return memory;
}

void report(Kind kind, const Memory& memory) {
  constexpr std::array<const char*, kKinds> kNames = {"every rank steps all", "shards", "shards of shared parameters"};
  std::printf("memory, %s: %.2f bytes per parameter and rank, %.2f without gradients\n", kNames.at(kind),
              memory.with_gradients, memory.without_gradients);
}

double median_ratio(const std::vector<double>& times, const std::vector<double>& to) {
  std::vector<double> ratios;
  for (size_t i = 0; i < times.size(); ++i) ratios.push_back(times[i] / to[i]);
  return median(ratios);
}

void report(const Workload& workload, const Times& times) {
  std::printf(
      "%s, %lld ranks, %.1f million parameters: every rank steps all %.2f ms, shards %.2f ms, shards of shared "
      "parameters %.2f ms; medians of ratios: shards to all %.2f, shared to shards %.2f\n",
      to_string(workload.optimizer.kind).c_str(), static_cast<long long>(workload.ranks),
      1e-6 * static_cast<double>(workload.layers * workload.width * (workload.width + 1)), median(times[kWhole]),
      median(times[kSharded]), median(times[kShared]), median_ratio(times[kSharded], times[kWhole]),
      median_ratio(times[kShared], times[kSharded]));
}

int run(const Workload& workload) {
  const MachineWatch watch;
  const auto codes = testing::fork_ranks(workload.ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    at::set_num_threads(1);
    for (const Kind kind : {kWhole, kSharded, kShared}) {
      const Memory memory = measure_memory(group, workload, kind);
      if (rank == 0) report(kind, memory);
    }
    const Times times = measure(group, workload);
    if (rank == 0) report(workload, times);
  });
  for (const int code : codes) {
    if (code != testing::kRankPassed) return code;
  }
  return exit_code(true, watch);
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_sharded_step_bench";
  description.version = "0";
  description.summary =
      "Times the optimizer's step without shards, with shards over the ranks of a node, and with shared parameters.";
  description.usage = "narrowcast_sharded_step_bench [flags]";
  description.groups = {{"Workload", {"ranks", "node_size", "optimizer", "layers", "width", "rounds"}}};
  description.examples = {{"two ranks", "narrowcast_sharded_step_bench --ranks=2"}};
  description.exit_codes = {{0, "it was measured"}, {1, "a rank failed, or bits differ"}};
  return description;
}

}  // namespace
}  // namespace narrowcast::bench

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::bench::description(), argc, argv, [](const auto&) {
    narrowcast::training::OptimizerOptions optimizer;
    optimizer.kind = narrowcast::training::parse_optimizer(absl::GetFlag(FLAGS_optimizer));
    if (optimizer.kind == narrowcast::training::OptimizerKind::kSgd) optimizer.momentum = 0.9;
    return narrowcast::bench::run({absl::GetFlag(FLAGS_ranks), absl::GetFlag(FLAGS_node_size), optimizer,
                                   absl::GetFlag(FLAGS_layers), absl::GetFlag(FLAGS_width),
                                   absl::GetFlag(FLAGS_rounds)});
  });
}
