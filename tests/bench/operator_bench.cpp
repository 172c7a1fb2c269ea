// Compares the time of the operator quantized_all_reduce_ with the hook int8, which sends the same bytes, and with the
// fp32 all-reduce, in turns. Where ranks share a node, also with the operator in one level. One rank of a job whose
// ranks a launcher starts; tests/bench/network/run_operator does so on simulated hosts. The time of an iteration is the
// slowest rank's. With up to two nodes, operator and hook must have the same bits; else it fails.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <absl/flags/flag.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/process_group.h>
#include <narrowcast/quantized_all_reduce.h>
#include <narrowcast/worker_env.h>
#include "ops/comm/node/find_nodes.h"
#include "ops/common/median.h"
#include "tests/hooks/all/bucket.h"
#include "trainer/base/program/command_line.h"

ABSL_FLAG(double, mebibytes, 25, "size of the tensor of float32");
ABSL_FLAG(int64_t, iterations, 20, "measured iterations of each, after three to warm up");

namespace narrowcast::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUp = 3;

struct Way {
  std::string name;
  std::function<void(const at::Tensor&)> average;
  std::vector<double> milliseconds = {};
};

Way way_of_hook(const std::string& name, const ProcessGroupPtr& group) {
  const std::shared_ptr<hooks::CommHook> hook = hooks::create_comm_hook(name, {.process_group = group});
  return {name, [hook](const at::Tensor& x) {
            auto bucket = hooks::make_bucket(x);
            hook->runHook(bucket)->waitAndThrow();
          }};
}

Way way_of_operator(const std::string& name, const ProcessGroupPtr& group, Levels levels) {
  return {name, [=](const at::Tensor& x) { quantized_all_reduce_(x, WireFormat::kInt8B128, group, levels); }};
}

// With more nodes, the hook's algorithm depends on the network that it measures.
void check_bits(const Way& hook, const Way& op, const at::Tensor& gradient, const ProcessGroupPtr& group) {
  if (node::find_nodes(group)->layout.nodes() > 2) return;
  const at::Tensor of_hook = gradient.clone();
  const at::Tensor of_operator = gradient.clone();
  hook.average(of_hook);
  op.average(of_operator);
  TORCH_CHECK(at::equal(of_hook, of_operator), "the operator and the hook int8 have different bits");
}

std::vector<Way> measure(const ProcessGroupPtr& group, int64_t numel, int64_t iterations) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(group->getRank()));
  const at::Tensor gradient = at::randn({numel}, generator) * 1e-3;
  const at::Tensor x = at::empty_like(gradient);
  std::vector<Way> ways{way_of_hook("allreduce", group), way_of_hook("int8", group),
                        way_of_operator("operator", group, Levels::kAuto)};
  check_bits(ways[1], ways[2], gradient, group);
  if (node::find_nodes(group)->layout.has_levels()) {
    ways.push_back(way_of_operator("one level", group, Levels::kOne));
  }
  for (int64_t iteration = 0; iteration < kWarmUp + iterations; ++iteration) {
    for (size_t turn = 0; turn < ways.size(); ++turn) {
      Way& way = ways[(turn + static_cast<size_t>(iteration)) % ways.size()];
      x.copy_(gradient);
      barrier(group, "starting to measure");
      const auto begin = Clock::now();
      way.average(x);
      const double milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      if (iteration >= kWarmUp) way.milliseconds.push_back(milliseconds);
    }
  }
  for (Way& way : ways) way.milliseconds = all_reduce_max(group, way.milliseconds);
  return ways;
}

// The median of the iterations' ratios is not affected by disturbances that make some iterations slow.
double median_ratio(const Way& way, const Way& other) {
  std::vector<double> ratios;
  for (size_t i = 0; i < way.milliseconds.size(); ++i) ratios.push_back(way.milliseconds[i] / other.milliseconds[i]);
  return median(ratios);
}

void report(const std::vector<Way>& ways) {
  const Way& hook = ways[1];
  std::printf("%-12s %9s %12s %8s %22s\n", "", "median ms", "x allreduce", "/ int8", "/ int8, in iterations");
  for (const Way& way : ways) {
    const double milliseconds = median(way.milliseconds);
    std::printf("%-12s %9.2f %12.2f %8.3f %22.3f\n", way.name.c_str(), milliseconds,
                median(ways[0].milliseconds) / milliseconds, milliseconds / median(hook.milliseconds),
                median_ratio(way, hook));
  }
}

int run(int64_t numel, int64_t iterations) {
  const ProcessGroupScope scope(WorkerEnv::from_environment());
  const auto ways = measure(scope.group(), numel, iterations);
  if (scope.group()->getRank() == 0) report(ways);
  return 0;
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_operator_bench";
  description.version = "0";
  description.summary = "Times quantized_all_reduce_ beside the hook int8 between the ranks of a job.";
  description.usage = "narrowcast-run --nproc_per_node=2 narrowcast_operator_bench [flags]";
  description.groups = {{"Workload", {"mebibytes", "iterations"}}};
  description.examples = {{"on simulated hosts", "sudo tests/bench/network/run_operator"}};
  description.exit_codes = {{0, "it was measured"}};
  return description;
}

}  // namespace
}  // namespace narrowcast::bench

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::bench::description(), argc, argv, [](const auto&) {
    const auto numel = static_cast<int64_t>(absl::GetFlag(FLAGS_mebibytes) * (1 << 20) / sizeof(float));
    return narrowcast::bench::run(numel, absl::GetFlag(FLAGS_iterations));
  });
}
