// How much longer a step takes because ranks compare their backward passes. Steps of one model with and without the
// comparison take turns, over Gloo on the loopback interface. Ranks are processes; the time of a step is the slowest
// rank's. The comparison takes the same time for every model: a few changes of threads. So its share depends on the
// step, which by default is that of a model with 10.5 million parameters.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <absl/flags/flag.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include "ops/common/median.h"
#include "tests/bench/machine_watch/machine_watch.h"
#include "tests/support/ranks.h"
#include "trainer/base/program/command_line.h"
#include "trainer/ddp/reducer/reducer.h"

ABSL_FLAG(int64_t, ranks, 2, "processes");
ABSL_FLAG(std::string, hook, "int8", "the communication hook, or none");
ABSL_FLAG(int64_t, node_size, 0, "for wire-format hooks: number of consecutive ranks that form a node; 0: detected");
ABSL_FLAG(int64_t, layers, 10, "linear layers of the model");
ABSL_FLAG(int64_t, width, 1024, "inputs and outputs of each layer");
ABSL_FLAG(int64_t, batch_size, 512, "rows of each rank's batch");
ABSL_FLAG(int64_t, pairs, 60, "measured steps with and without the comparison, after ten to warm up");

namespace narrowcast {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUp = 10;
constexpr double kTarget = 0.005;  // Share of a step.
constexpr int kTargetMissed = 2;   // The exit code of rank 0's process.

struct Workload {
  int64_t ranks = 0;
  std::string hook;
  int64_t node_size = 0;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t batch_size = 0;
  int64_t pairs = 0;
};

// Ranks compare nothing if a hook leaves replicas different.
class SwitchedHook final : public hooks::CommHook {
 public:
  SwitchedHook(std::unique_ptr<hooks::CommHook> hook, const bool& compares)
      : hook_(std::move(hook)), compares_(compares) {}

  std::string_view name() const override { return hook_->name(); }
  bool keeps_replicas_equal() const override { return compares_; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override { return hook_->runHook(bucket); }

 private:
  const std::unique_ptr<hooks::CommHook> hook_;
  const bool& compares_;
};

torch::nn::Sequential make_model(const Workload& workload) {
  torch::nn::Sequential model;
  for (int64_t layer = 0; layer < workload.layers; ++layer) {
    model->push_back(torch::nn::Linear(workload.width, workload.width));
  }
  return model;
}

DdpOptions options_of(const Workload& workload) {
  DdpOptions options = DdpOptions().hook(workload.hook);
  if (workload.node_size > 0) options.wire({.node_size = workload.node_size});
  return options;
}

// For one kind of time: milliseconds of a step with the comparison minus those of its neighbour without it, and the
// latter.
struct Measured {
  std::vector<double> difference;
  std::vector<double> without;
};

// Wall time, and the processor time of the rank that uses most, which other programs disturb less.
struct Times {
  Measured wall;
  Measured processor;
};

double processor_milliseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

void add_pair(Measured& measured, double with, double without) {
  measured.without.push_back(without);
  measured.difference.push_back(with - without);
}

// A step that compares passes or does not.
using Step = std::function<void(bool compares)>;

at::Tensor make_inputs(const Workload& workload) { return at::randn({workload.batch_size, workload.width}); }

Step step_with_hook(const ProcessGroupPtr& group, const Workload& workload) {
  const auto compares = std::make_shared<bool>(false);
  const auto ddp = std::make_shared<DistributedDataParallel<torch::nn::Sequential>>(make_model(workload), group);
  ddp->register_comm_hook(std::make_unique<SwitchedHook>(
      hooks::create_comm_hook(workload.hook, options_of(workload).hook_options(group)), *compares));
  return [compares, ddp, x = make_inputs(workload)](bool compare) {
    *compares = compare;
    ddp->zero_grad();
    ddp->backward(ddp->forward(x).square().mean());
  };
}

// Without a hook every step compares. Steps that do not are those of a Reducer by itself, of another model of the same
// size.
Step step_without_hook(const ProcessGroupPtr& group, const Workload& workload) {
  const auto ddp = std::make_shared<DistributedDataParallel<torch::nn::Sequential>>(make_model(workload), group);
  torch::nn::Sequential plain = make_model(workload);
  const std::vector<NamedTensor> trainable = module_state(plain.ptr()).trainable();
  const auto reducer = make_reducer(trainable, group, {}, first_buckets(trainable, {}));
  return [ddp, plain, reducer, x = make_inputs(workload)](bool compare) mutable {
    if (compare) {
      ddp->zero_grad();
      ddp->backward(ddp->forward(x).square().mean());
      return;
    }
    plain->zero_grad();
    reducer->prepare_for_forward();
    reducer->rebuild_buckets();
    const at::Tensor output = plain->forward(x);
    reducer->prepare_for_backward({});
    output.square().mean().backward();
  };
}

Times measure(const ProcessGroupPtr& group, const Workload& workload) {
  const Step step = workload.hook == "none" ? step_without_hook(group, workload) : step_with_hook(group, workload);
  const auto milliseconds = [&](bool compare) {
    testing::wait_for_ranks(group);
    const auto begin = Clock::now();
    const double processor = processor_milliseconds();
    step(compare);
    return all_reduce_max(group, {std::chrono::duration<double, std::milli>(Clock::now() - begin).count(),
                                  processor_milliseconds() - processor});
  };
  Times times;
  for (int64_t pair = -kWarmUp; pair < workload.pairs; ++pair) {
    const bool first = pair % 2 == 0;
    const std::vector<double> of_first = milliseconds(first);
    const std::vector<double> of_second = milliseconds(!first);
    if (pair < 0) continue;
    const std::vector<double>& with = first ? of_first : of_second;
    const std::vector<double>& without = first ? of_second : of_first;
    add_pair(times.wall, with.at(0), without.at(0));
    add_pair(times.processor, with.at(1), without.at(1));
  }
  return times;
}

// Prints the figures. The target counts as met if the 95% interval of the median, by order statistics, reaches it.
bool report(const std::string& name, Measured measured) {
  std::vector<double>& sorted = measured.difference;
  std::sort(sorted.begin(), sorted.end());
  const double n = static_cast<double>(sorted.size());
  const auto at_rank = [&](double rank) { return sorted[static_cast<size_t>(std::clamp(rank, 0.0, n - 1))]; };
  const double step = median(measured.without);
  const double low = at_rank(n / 2 - 0.98 * std::sqrt(n));
  const double high = at_rank(n / 2 + 0.98 * std::sqrt(n));
  std::printf("%-14s %9.3f ms in a step; the comparison %+.4f ms (%+.4f to %+.4f at 95%%), %+.2f%%: %s\n", name.c_str(),
              step, median(sorted), low, high, 100 * median(sorted) / step, low / step <= kTarget ? "PASS" : "FAIL");
  return low / step <= kTarget;
}

int run(const Workload& workload) {
  const bench::MachineWatch watch;
  const auto codes = testing::fork_ranks(workload.ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    at::set_num_threads(1);
    const Times times = measure(group, workload);
    if (rank != 0) return;
    std::printf("%s, %lld ranks\n", workload.hook.c_str(), static_cast<long long>(workload.ranks));
    const bool processor_met = report("processor time", times.processor);
    if (!report("time", times.wall) || !processor_met) {
      std::fflush(nullptr);
      ::_exit(kTargetMissed);
    }
  });
  for (const int code : codes) {
    if (code != testing::kRankPassed && code != kTargetMissed) return code;
  }
  return bench::exit_code(codes.front() != kTargetMissed, watch);
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_pass_check_bench";
  description.version = "0";
  description.summary = "Times steps with and without the comparison of backward passes, and checks the target.";
  description.usage = "narrowcast_pass_check_bench [flags]";
  description.groups = {{"Workload", {"ranks", "hook", "node_size", "layers", "width", "batch_size", "pairs"}}};
  description.examples = {{"the target's own case", "narrowcast_pass_check_bench"}};
  description.exit_codes = {{0, "the target was met, or the machine was busy"},
                            {1, "the target was missed or a rank failed"}};
  return description;
}

}  // namespace
}  // namespace narrowcast

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::description(), argc, argv, [](const auto&) {
    return narrowcast::run({absl::GetFlag(FLAGS_ranks), absl::GetFlag(FLAGS_hook), absl::GetFlag(FLAGS_node_size),
                            absl::GetFlag(FLAGS_layers), absl::GetFlag(FLAGS_width), absl::GetFlag(FLAGS_batch_size),
                            absl::GetFlag(FLAGS_pairs)});
  });
}
