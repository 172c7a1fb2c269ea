// The time of the trainer's optimizer step with and without shards, in turns, for ranks that share a node. Ranks are
// processes; the time of a step is the slowest rank's. With shards it contains the exchange of the new parameters.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <absl/flags/flag.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

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
#include "tests/support/ranks.h"
#include "trainer/base/program/command_line.h"
#include "trainer/train/optimization/optimizer.h"

ABSL_FLAG(int64_t, ranks, 4, "processes");
ABSL_FLAG(int64_t, node_size, 0, "number of consecutive ranks that form a node; 0: all ranks do");
ABSL_FLAG(std::string, optimizer, "adamw", "the optimizer: adamw or sgd, with momentum 0.9");
ABSL_FLAG(int64_t, layers, 10, "linear layers of the model");
ABSL_FLAG(int64_t, width, 1024, "inputs and outputs of each layer");
ABSL_FLAG(int64_t, pairs, 40, "measured steps with and without shards, after five to warm up");

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
  int64_t pairs = 0;
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

struct Times {
  std::vector<double> whole;    // milliseconds
  std::vector<double> sharded;  // the same
};

Times measure(const ProcessGroupPtr& group, const Workload& workload) {
  Training whole(workload);
  Training parts(workload);
  const ShardOptions options =
      ShardOptions().node_size(workload.node_size > 0 ? std::optional(workload.node_size) : std::nullopt);
  ShardedOptimizer sharded(*parts.optimizer, group, options);
  const auto milliseconds = [&](const std::function<void()>& step) {
    testing::wait_for_ranks(group);
    const auto begin = Clock::now();
    step();
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  Times times;
  for (int64_t pair = -kWarmUp; pair < workload.pairs; ++pair) {
    const auto step_whole = [&] { return milliseconds([&] { whole.optimizer->step(); }); };
    const auto step_sharded = [&] { return milliseconds([&] { sharded.step(); }); };
    const double first = pair % 2 == 0 ? step_whole() : step_sharded();
    const double second = pair % 2 == 0 ? step_sharded() : step_whole();
    if (pair < 0) continue;
    times.whole.push_back(pair % 2 == 0 ? first : second);
    times.sharded.push_back(pair % 2 == 0 ? second : first);
  }
  for (size_t i = 0; i < parts.model->parameters().size(); ++i) {
    TORCH_CHECK(at::equal(parts.model->parameters()[i], whole.model->parameters()[i]),
                "the steps with and without shards have different bits");
  }
  return {all_reduce_max(group, times.whole), all_reduce_max(group, times.sharded)};
}

void report(const Workload& workload, const Times& times) {
  std::vector<double> ratios;
  for (size_t i = 0; i < times.whole.size(); ++i) ratios.push_back(times.sharded[i] / times.whole[i]);
  std::printf(
      "%s, %lld ranks, %.1f million parameters: every rank steps all %.2f ms, shards %.2f ms; "
      "median of the pairs' ratios %.2f\n",
      to_string(workload.optimizer.kind).c_str(), static_cast<long long>(workload.ranks),
      1e-6 * static_cast<double>(workload.layers * workload.width * (workload.width + 1)), median(times.whole),
      median(times.sharded), median(ratios));
}

int run(const Workload& workload) {
  const MachineWatch watch;
  const auto codes = testing::fork_ranks(workload.ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    at::set_num_threads(1);
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
  description.summary = "Times the optimizer's step with and without shards over the ranks of a node.";
  description.usage = "narrowcast_sharded_step_bench [flags]";
  description.groups = {{"Workload", {"ranks", "node_size", "optimizer", "layers", "width", "pairs"}}};
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
                                   absl::GetFlag(FLAGS_pairs)});
  });
}
