// Time per step of every hook on one bucket, in alternation, over Gloo on the loopback interface. Ranks are processes.
// The time of a step is the slowest rank's, and only ratios within one run are meaningful.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <absl/flags/flag.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include "ops/common/median.h"
#include "tests/bench/machine_watch/machine_watch.h"
#include "tests/hooks/all/bucket.h"
#include "tests/support/ranks.h"
#include "trainer/base/program/command_line.h"

ABSL_FLAG(int64_t, ranks, 2, "processes, each with one copy of the bucket");
ABSL_FLAG(int64_t, threads, 1, "threads per process");
ABSL_FLAG(int64_t, buckets, 1, "buckets in flight at once");
ABSL_FLAG(double, mebibytes, 25, "size of a bucket of float32");
ABSL_FLAG(int64_t, steps, 20, "measured steps per hook, after two to warm up");

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUp = 2;

struct Workload {
  int64_t ranks = 0;
  int64_t threads = 0;
  int64_t buckets = 0;
  int64_t numel = 0;
  int64_t steps = 0;
};

// The maximum time of a hook with two ranks, relative to fp32 all-reduce, and the time in a good run. With more ranks,
// an all-gather of codes sends more than a ring does. Loopback costs processor time instead of time on a wire, so that
// both times vary between runs: by a sixth on a quiet machine of two cores.
struct Target {
  std::string_view hook;
  double ratio;
  double goal;
};
constexpr int64_t kTargetRanks = 2;
constexpr int kTargetMissed = 2;  // The exit code of rank 0's process.
constexpr Target kTargets[] = {{"quantize_per_tensor", 0.75, 0.65}, {"quantize_per_channel", 0.75, 0.65}};

struct Measured {
  std::string name;
  std::unique_ptr<CommHook> hook;
  std::vector<double> milliseconds = {};
};

// The largest of the ranks' values.
double slowest(const Group& group, double value) {
  std::vector<at::Tensor> tensors{at::full({1}, value, at::kDouble)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  group->allreduce(tensors, options)->wait();
  return tensors[0].item<double>();
}

double milliseconds_of_step(CommHook& hook, const std::vector<at::Tensor>& buffers, const Group& group) {
  testing::wait_for_ranks(group);
  const auto begin = Clock::now();
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (size_t i = 0; i < buffers.size(); ++i) {
    auto bucket = make_bucket(buffers[i], i, buffers.size());
    futures.push_back(hook.runHook(bucket));
  }
  for (const auto& future : futures) future->waitAndThrow();
  return slowest(group, std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
}

std::vector<Measured> make_hooks(const Group& group) {
  std::vector<Measured> hooks;
  for (const std::string& name : comm_hook_names()) {
    if (auto hook = create_comm_hook(name, {group})) hooks.push_back({name, std::move(hook)});
  }
  return hooks;
}

std::vector<Measured> measure(int64_t rank, const Group& group, const Workload& workload) {
  at::manual_seed(static_cast<uint64_t>(rank));
  const at::Tensor gradient = at::randn({workload.numel}) * 1e-3;
  std::vector<at::Tensor> buffers;
  for (int64_t i = 0; i < workload.buckets; ++i) buffers.push_back(at::empty_like(gradient));
  auto hooks = make_hooks(group);
  for (int64_t step = 0; step < kWarmUp + workload.steps; ++step) {
    for (Measured& measured : hooks) {
      for (const at::Tensor& buffer : buffers) buffer.copy_(gradient);
      const double milliseconds = milliseconds_of_step(*measured.hook, buffers, group);
      if (step >= kWarmUp) measured.milliseconds.push_back(milliseconds);
    }
  }
  return hooks;
}

double median_of(const std::vector<Measured>& hooks, std::string_view name) {
  const auto found = std::find_if(hooks.begin(), hooks.end(), [&](const Measured& hook) { return hook.name == name; });
  return median(found->milliseconds);
}

// Prints the table. Returns whether every target was met.
bool report(const std::vector<Measured>& hooks, const Workload& workload) {
  const double fp32 = median_of(hooks, "allreduce");
  const double bf16 = median_of(hooks, "bf16_compress");
  bool met = true;
  std::printf("%-22s %9s %9s %9s %14s\n", "hook", "ms", "/ fp32", "/ bf16", "payload bytes");
  for (const Measured& measured : hooks) {
    const double milliseconds = median(measured.milliseconds);
    const double ratio = milliseconds / fp32;
    std::printf("%-22s %9.2f %9.3f %9.3f %14lld", measured.name.c_str(), milliseconds, ratio, milliseconds / bf16,
                static_cast<long long>(measured.hook->payload_bytes_sent() / (kWarmUp + workload.steps)));
    for (const Target& target : kTargets) {
      if (workload.ranks != kTargetRanks || target.hook != measured.name) continue;
      const bool passed = ratio <= target.ratio;
      std::printf("   %s: at most %.2f of fp32 (goal %.2f)", passed ? "PASS" : "FAIL", target.ratio, target.goal);
      met = met && passed;
    }
    std::printf("\n");
  }
  return met;
}

int run(const Workload& workload) {
  const bench::MachineWatch watch;
  std::printf("%lld ranks x %lld threads, %lld x %lld float32, median of %lld steps, slowest rank\n",
              static_cast<long long>(workload.ranks), static_cast<long long>(workload.threads),
              static_cast<long long>(workload.buckets), static_cast<long long>(workload.numel),
              static_cast<long long>(workload.steps));
  const auto codes = testing::fork_ranks(workload.ranks, [&](int64_t rank, const Group& group) {
    at::set_num_threads(static_cast<int>(workload.threads));
    const auto hooks = measure(rank, group, workload);
    if (rank == 0 && !report(hooks, workload)) {
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
  description.name = "narrowcast_hooks_bench";
  description.version = "0";
  description.summary = "Times every communication hook over the loopback interface and checks the targets.";
  description.usage = "narrowcast_hooks_bench [flags]";
  description.groups = {{"Workload", {"ranks", "threads", "buckets", "mebibytes", "steps"}}};
  description.examples = {{"the targets' own case", "narrowcast_hooks_bench"}};
  description.exit_codes = {{0, "every target was met, or the machine was busy"},
                            {1, "a target was missed or a rank failed"}};
  return description;
}

}  // namespace
}  // namespace narrowcast::hooks

int main(int argc, char** argv) {
  using narrowcast::hooks::Workload;
  return narrowcast::program::run_main(narrowcast::hooks::description(), argc, argv, [](const auto&) {
    const auto numel = static_cast<int64_t>(absl::GetFlag(FLAGS_mebibytes) * (1 << 20) / sizeof(float));
    return narrowcast::hooks::run({absl::GetFlag(FLAGS_ranks), absl::GetFlag(FLAGS_threads),
                                   absl::GetFlag(FLAGS_buckets), numel, absl::GetFlag(FLAGS_steps)});
  });
}
