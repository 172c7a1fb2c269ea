#include "trainer/train/bench/hook_times.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>

namespace narrowcast::bench {
namespace {

using Clock = std::chrono::steady_clock;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

constexpr double kGradientSize = 1e-3;  // Standard deviation.

// The buckets of one step, as a Reducer would hand them out.
class Buckets {
 public:
  Buckets(int64_t numel, int64_t count, uint64_t seed)
      : gradient_(at::randn({numel}, at::detail::createCPUGenerator(seed)) * kGradientSize) {
    for (int64_t i = 0; i < count; ++i) {
      buffers_.push_back(at::empty_like(gradient_));
      parameters_.push_back(gradient_.view({1, numel}));  // Nobody reads it, but hooks may ask which it is.
    }
  }

  size_t count() const { return buffers_.size(); }
  const at::Tensor& buffer(size_t i) const { return buffers_[i]; }

  void fill() const {
    for (const at::Tensor& buffer : buffers_) {
      buffer.copy_(gradient_);
    }
  }
  c10d::GradBucket bucket(size_t i) const {
    const auto numel = static_cast<size_t>(gradient_.numel());
    return c10d::GradBucket(i, count(), buffers_[i], {0}, {numel}, {parameters_[i].sizes()}, {parameters_[i]},
                            std::nullopt);
  }

 private:
  at::Tensor gradient_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> parameters_;
};

// A hook and its times on this rank.
struct Entry {
  std::string name;
  std::unique_ptr<hooks::CommHook> hook;
  std::vector<double> milliseconds = {};
  int64_t warmup_bytes = 0;
};

std::vector<Entry> make_entries(const ProcessGroupPtr& group, const std::vector<std::string>& names) {
  std::vector<Entry> entries;
  for (const std::string& name : names) {
    entries.push_back({.name = name, .hook = hooks::create_comm_hook(name, {.process_group = group})});
  }
  return entries;
}

// The Reducer copies a result that is not the bucket itself, so that belongs to the time.
void take_result(hooks::CommHook& hook, const FuturePtr& future, const at::Tensor& buffer) {
  future->waitAndThrow();
  const at::Tensor result = hook.parseHookResult(future->value());
  if (!result.is_alias_of(buffer)) {
    buffer.copy_(result);
  }
}

double milliseconds_of_step(const ProcessGroupPtr& group, hooks::CommHook& hook, const Buckets& buckets) {
  buckets.fill();
  barrier(group, "starting to measure a hook");
  const auto begin = Clock::now();
  std::vector<FuturePtr> futures;
  for (size_t i = 0; i < buckets.count(); ++i) {
    auto bucket = buckets.bucket(i);
    futures.push_back(hook.runHook(bucket));
  }
  for (size_t i = 0; i < buckets.count(); ++i) {
    take_result(hook, futures[i], buckets.buffer(i));
  }
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void take_turns(const ProcessGroupPtr& group, const HookWorkload& workload, std::vector<Entry>& entries) {
  const Buckets buckets(workload.numel, workload.buckets, static_cast<uint64_t>(group->getRank()));
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
  time.median_ms = median(time.milliseconds);
  return time;
}

}  // namespace

HookTimes measure_hooks(const ProcessGroupPtr& group, const HookWorkload& workload) {
  std::vector<Entry> entries = make_entries(group, workload.hooks);
  with_network_errors(group->getRank(), "measuring hooks", [&] { take_turns(group, workload, entries); });
  HookTimes result;
  for (const Entry& entry : entries) {
    result.times.push_back(summarize(group, workload, entry));
    result.payload_bytes_sent += entry.hook->payload_bytes_sent();
  }
  return result;
}

}  // namespace narrowcast::bench
