#include "trainer/train/bench/hook_times.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>
#include "hooks/exchange_cost.h"
#include "hooks/hook_table.h"
#include "ops/median.h"

namespace narrowcast::bench {
namespace {

using Clock = std::chrono::steady_clock;

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

double milliseconds_of_step(const ProcessGroupPtr& group, hooks::CommHook& hook,
                            const hooks::GradientBuckets& buckets) {
  buckets.fill();
  barrier(group, "starting to measure a hook");
  const auto begin = Clock::now();
  buckets.average(hook);
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void take_turns(const ProcessGroupPtr& group, const HookWorkload& workload, std::vector<Entry>& entries) {
  const hooks::GradientBuckets buckets(workload.numel, workload.buckets, static_cast<uint64_t>(group->getRank()));
  for (int64_t iteration = 0; iteration < workload.warmup_iterations + workload.iterations; ++iteration) {
    for (size_t turn = 0; turn < entries.size(); ++turn) {
      Entry& entry = entries[(turn + static_cast<size_t>(iteration)) % entries.size()];
      const double milliseconds = milliseconds_of_step(group, *entry.hook, buckets);
      if (iteration >= workload.warmup_iterations) {
        entry.milliseconds.push_back(milliseconds);
      } else {
        entry.warmup_bytes = entry.hook->payload_bytes_sent();
      }
    }
  }
}

// A collective: the most that the ranks of one node send together, if this rank sends `bytes`.
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
  return time;
}

}  // namespace

hooks::HookOptions options_of(const std::string& hook, const ProcessGroupPtr& group, const hooks::WireOptions& wire) {
  const hooks::HookRow& row = hooks::hook_row(hook);
  return {.process_group = group,
          .wire = row.takes_wire() ? wire : hooks::WireOptions{},
          .power_sgd = {.start = row.takes_power_sgd ? 0 : hooks::PowerSgdOptions{}.start}};
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

}  // namespace narrowcast::bench
