#include "trainer/train/bench/measurements.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>
#include "hooks/row/levels.h"
#include "hooks/table/exchange_cost.h"
#include "hooks/table/hook_table.h"
#include "ops/comm/link/stream_link.h"
#include "ops/common/device_laps.h"
#include "ops/common/median.h"
#include "trainer/train/bench/start_line.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/training/evaluation.h"
#include "trainer/train/training/replicas.h"

namespace narrowcast::bench {
namespace {

// A hook and its times on this rank.
struct Entry {
  std::string name;
  std::unique_ptr<hooks::CommHook> hook;
  std::vector<double> milliseconds = {};
  int64_t warmup_bytes = 0;
};

std::vector<Entry> make_entries(const ProcessGroupPtr& group, const HookWorkload& workload) {
  std::vector<Entry> entries;
  for (const std::string& name : workload.hooks) {
    entries.push_back({.name = name, .hook = hooks::create_comm_hook(name, options_of(name, group, workload.wire))});
  }
  return entries;
}

// Ranks whose hosts begin together still enqueue at different times. So on a GPU each stream waits for all ranks.
void start_together(const ProcessGroupPtr& group, const StartLine& line, at::Device device) {
  constexpr const char* kStarting = "starting to measure a hook";
  training::wait_for_device(device);
  line.wait(kStarting);
  if (!device.is_cpu()) {
    training::sum_over_ranks(group, at::zeros({1}, device), kStarting);
  }
}

double milliseconds_of_step(const ProcessGroupPtr& group, const StartLine& line, hooks::CommHook& hook,
                            const hooks::GradientBuckets& buckets) {
  const at::Device device = buckets.gradients().device();
  buckets.fill();
  start_together(group, line, device);
  DeviceLaps laps(device);
  laps.mark();
  buckets.average(hook);
  laps.mark();
  return 1e3 * laps.take()[0];
}

void take_turns(const ProcessGroupPtr& group, const HookWorkload& workload, std::vector<Entry>& entries) {
  const hooks::GradientBuckets buckets(workload.numel, workload.buckets, static_cast<uint64_t>(group->getRank()),
                                       workload.device);
  const StartLine line(group);
  for (int64_t iteration = 0; iteration < workload.warmup_iterations + workload.iterations; ++iteration) {
    for (size_t turn = 0; turn < entries.size(); ++turn) {
      Entry& entry = entries[(turn + static_cast<size_t>(iteration)) % entries.size()];
      const double milliseconds = milliseconds_of_step(group, line, *entry.hook, buckets);
      if (iteration >= workload.warmup_iterations) {
        entry.milliseconds.push_back(milliseconds);
      } else {
        entry.warmup_bytes = entry.hook->payload_bytes_sent();
      }
    }
  }
}

// A collective: the largest number of bytes that the ranks of one node send together, if this rank sends `bytes`.
double most_of_any_node(const ProcessGroupPtr& group, const std::vector<int64_t>& nodes, double bytes) {
  std::vector<double> of_nodes(static_cast<size_t>(*std::max_element(nodes.begin(), nodes.end())) + 1);
  of_nodes[static_cast<size_t>(nodes[static_cast<size_t>(group->getRank())])] = bytes;
  of_nodes = all_reduce_sum(group, of_nodes);
  return *std::max_element(of_nodes.begin(), of_nodes.end());
}

// A collective.
HookTime summarize(const ProcessGroupPtr& group, const HookWorkload& workload, const Entry& entry) {
  const int64_t sent = entry.hook->payload_bytes_sent() - entry.warmup_bytes;
  const double per_iteration = static_cast<double>(sent) / static_cast<double>(workload.iterations);
  HookTime time;
  time.hook = entry.name;
  time.bucket_bytes = workload.numel * static_cast<int64_t>(sizeof(float));
  time.buckets = workload.buckets;
  time.milliseconds = all_reduce_max(group, entry.milliseconds);
  time.payload_bytes = std::llround(all_reduce_max(group, {per_iteration})[0]);
  time.payload_bytes_per_node = std::llround(most_of_any_node(group, workload.nodes, per_iteration));
  time.median_ms = median(time.milliseconds);
  time.decision = entry.hook->decision();
  return time;
}

// Averages one bucket after the other, and compares each with the exact mean.
class ExactnessRun {
 public:
  ExactnessRun(const ProcessGroupPtr& group, int64_t numel, at::Device device)
      : group_(group), buckets_(numel, 1, static_cast<uint64_t>(group->getRank()), device) {
    mean_ = sum_over_ranks(buckets_.gradients().to(at::kDouble)).div_(group->getSize());
    squares_of_mean_ = mean_.square().sum().item<double>();
  }

  // A collective.
  HookExactness of(const std::string& name, const hooks::WireOptions& wire) {
    const hooks::HookOptions options = options_of(name, group_, wire);
    const std::unique_ptr<hooks::CommHook> hook = hooks::create_comm_hook(name, options);
    buckets_.fill();
    with_network_errors(group_->getRank(), "averaging with the hook " + name, [&] { buckets_.average(*hook); });
    payload_bytes_sent_ += hook->payload_bytes_sent();
    const hooks::SentBucket sent = {
        .gradients = buckets_.gradients(),
        .sum_over_ranks = [this](const at::Tensor& term) { return sum_over_ranks(term.clone()); }};
    const auto terms = hooks::hook_row(name).error_terms(sent, hooks::find_hook_nodes(options)->layout, options);
    return compared(name, sum_over_ranks(terms.sum()));
  }

  int64_t payload_bytes_sent() const { return payload_bytes_sent_; }

 private:
  // Sums in place, in float64.
  at::Tensor sum_over_ranks(at::Tensor term) {
    payload_bytes_sent_ += hooks::ring_all_reduce_bytes(static_cast<int64_t>(term.nbytes()), group_->getSize());
    return training::sum_over_ranks(group_, std::move(term), "sum in float64 for the exact mean");
  }

  HookExactness compared(const std::string& name, const at::Tensor& tolerance) const {
    const at::Tensor& result = buckets_.buffer(0);
    const at::Tensor difference = result.to(at::kDouble).sub_(mean_).abs_();
    const double error = difference.square().sum().item<double>() / squares_of_mean_;
    // A NaN also counts as outside.
    const int64_t outside = difference.numel() - difference.le(tolerance).sum().item<int64_t>();
    const std::vector<double> worst = all_reduce_max(
        group_, {std::isnan(error) ? std::numeric_limits<double>::infinity() : error, static_cast<double>(outside)});
    return {.hook = name,
            .bucket_bytes = static_cast<int64_t>(result.nbytes()),
            .squared_relative_error = worst[0],
            .outside_tolerance = std::llround(worst[1]),
            .replicas_equal = training::equal_on_all_ranks(group_, {result})};
  }

  const ProcessGroupPtr& group_;
  const hooks::GradientBuckets buckets_;
  at::Tensor mean_;  // exact, float64
  double squares_of_mean_ = 0;
  int64_t payload_bytes_sent_ = 0;
};

}  // namespace

LinkRate measure_link(const ProcessGroupPtr& group, const collectives::LinkEffort& effort, at::Device device) {
  const int64_t ranks = group->getSize();
  const int64_t rank = group->getRank();
  const collectives::LinkPeers neighbours{(rank + 1) % ranks, (rank + ranks - 1) % ranks};
  const collectives::LinkRates rates = device.is_cpu()
                                           ? collectives::measure_link(group, neighbours, effort)
                                           : collectives::measure_link_on_stream(group, device, neighbours, effort);
  return {.gbit_per_second = rates.cost.gbit(),
          .message_bytes = rates.message_bytes,
          .round_trip_us = 2e6 * rates.cost.seconds_per_hop,
          .payload_bytes_sent = rates.payload_bytes_sent};
}

hooks::HookOptions options_of(const std::string& hook, const ProcessGroupPtr& group, const hooks::WireOptions& wire) {
  return hooks::with_immediate_start(
      hook, {.process_group = group, .wire = hooks::supported_wire_options(hooks::hook_row(hook), wire)});
}

HookTimes measure_hooks(const ProcessGroupPtr& group, const HookWorkload& workload) {
  TORCH_CHECK_VALUE(workload.nodes.size() == static_cast<size_t>(group->getSize()),
                    "nodes: must name the node of each of ", group->getSize(), " ranks, but has ",
                    workload.nodes.size());
  std::vector<Entry> entries = make_entries(group, workload);
  with_network_errors(group->getRank(), "measuring hooks", [&] { take_turns(group, workload, entries); });
  HookTimes result;
  for (const Entry& entry : entries) {
    result.times.push_back(summarize(group, workload, entry));
    result.payload_bytes_sent += entry.hook->payload_bytes_sent();
  }
  return result;
}

Exactness measure_exactness(const ProcessGroupPtr& group, const std::vector<std::string>& names, int64_t numel,
                            const hooks::WireOptions& wire, at::Device device) {
  ExactnessRun run(group, numel, device);
  Exactness exactness;
  for (const std::string& name : names) {
    if (hooks::hook_row(name).approximates()) continue;
    exactness.hooks.push_back(run.of(name, wire));
  }
  exactness.payload_bytes_sent = run.payload_bytes_sent();
  return exactness;
}

}  // namespace narrowcast::bench
