#include "hooks/table/exchange_cost.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "ops/comm/groups/group.h"
#include "ops/comm/link/link.h"
#include "ops/common/backend_errors.h"
#include "ops/common/device_laps.h"

namespace narrowcast::hooks {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr double kGradientSize = 1e-3;  // Standard deviation.
constexpr int64_t kGrowth = 4;
constexpr double kShareOfOne = 1.0 / 8;  // A large enough all-reduce takes at least this share of the time for all.

void check_measurement(const CostMeasurement& options) {
  TORCH_CHECK_VALUE(options.small_numel >= 1, "small_numel: must be at least 1, but is ", options.small_numel);
  TORCH_CHECK_VALUE(options.large_numel > options.small_numel, "large_numel: must be greater than small_numel (",
                    options.small_numel, "), but is ", options.large_numel);
  TORCH_CHECK_VALUE(options.iterations >= 1, "iterations: must be at least 1, but is ", options.iterations);
  TORCH_CHECK_VALUE(options.seconds > 0, "seconds: must be positive, but is ", options.seconds);
}

// A collective: the maximum over the ranks. It returns on no rank before all ranks have called it.
double greatest_of_ranks(const GroupPtr& group, const CommHook& hook, double value) {
  return collectives::greatest_of_ranks(group, c10::str("measuring hook ", hook.name()), {value})[0];
}

// All-reduces of buckets of one size, one at a time. Results are the same on all ranks.
class Exchanges {
 public:
  Exchanges(CommHook& hook, const GroupPtr& group, int64_t numel, at::Device device)
      : hook_(hook),
        group_(group),
        numel_(numel),
        device_(device),
        buckets_(numel, 1, static_cast<uint64_t>(group->getRank()), device),
        laps_(device) {}

  int64_t numel() const { return numel_; }

  // A collective: the slowest rank's seconds for the next all-reduce. All ranks begin it together.
  double next() {
    buckets_.fill();
    greatest_of_ranks(group_, hook_, 0);
    if (!device_.is_cpu()) start_streams_together();
    laps_.mark();
    buckets_.average(hook_);
    laps_.mark();
    return greatest_of_ranks(group_, hook_, laps_.take().front());
  }

  // A collective: the least of at most `iterations` times; it stops early once they have taken `budget` seconds.
  double least(int64_t iterations, double budget) {
    double least = next();
    double spent = least;
    for (int64_t i = 1; i < iterations && spent < budget; ++i) {
      const double seconds = next();
      spent += seconds;
      least = std::min(least, seconds);
    }
    return least;
  }

 private:
  // Hosts that begin together do not reach their streams at the same moment.
  void start_streams_together() {
    std::vector<at::Tensor> token{at::zeros({1}, device_)};
    with_backend_errors(group_->getRank(), c10::str("measuring hook ", hook_.name()),
                        [&] { group_->allreduce(token)->wait(); });
  }

  CommHook& hook_;
  const GroupPtr& group_;
  const int64_t numel_;
  const at::Device device_;
  const GradientBuckets buckets_;
  DeviceLaps laps_;
};

// The greatest divisor up to the square root.
int64_t most_square_rows(int64_t numel) {
  auto rows = std::max<int64_t>(1, static_cast<int64_t>(std::sqrt(static_cast<double>(numel))));
  while (numel % rows != 0) --rows;
  return rows;
}

}  // namespace

GradientBuckets::GradientBuckets(int64_t numel, int64_t count, uint64_t seed, at::Device device)
    : gradients_((at::randn({numel}, at::detail::createCPUGenerator(seed)) * kGradientSize).to(device)) {
  const int64_t rows = most_square_rows(numel);
  for (int64_t i = 0; i < count; ++i) {
    buffers_.push_back(at::empty_like(gradients_));
    parameters_.push_back(gradients_.view({rows, numel / rows}));  // Not read, but hooks may use its identity.
  }
}

void GradientBuckets::fill() const {
  for (const at::Tensor& buffer : buffers_) {
    buffer.copy_(gradients_);
  }
}

void GradientBuckets::average(CommHook& hook) const {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    auto bucket = this->bucket(i);
    futures.push_back(hook.runHook(bucket));
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    futures[i]->waitAndThrow();
    const at::Tensor result = hook.parseHookResult(futures[i]->value());
    if (!result.is_alias_of(buffers_[i])) {
      buffers_[i].copy_(result);
    }
  }
}

c10d::GradBucket GradientBuckets::bucket(size_t i) const {
  const auto numel = static_cast<size_t>(gradients_.numel());
  return c10d::GradBucket(i, buffers_.size(), buffers_[i], {0}, {numel}, {parameters_[i].sizes()}, {parameters_[i]},
                          std::nullopt);
}

namespace {

// Measures all buckets of one size before the next size: a hook keeps memory for one size per bucket.
ExchangeCost measured_line(CommHook& hook, const GroupPtr& group, const CostMeasurement& options) {
  const double budget_of_size = options.seconds / 2;
  const double enough = options.seconds * kShareOfOne;
  Exchanges small(hook, group, options.small_numel, options.device);
  small.next();
  const double small_seconds = small.least(options.iterations, budget_of_size);
  for (int64_t numel = options.small_numel;;) {
    numel = std::min(numel * kGrowth, options.large_numel);
    Exchanges large(hook, group, numel, options.device);
    const double unmeasured = large.next();
    // A first all-reduce that took long may have waited for a processor.
    if (numel < options.large_numel && (unmeasured < enough || large.next() < enough)) {
      continue;
    }
    const double difference = large.least(options.iterations, budget_of_size) - small_seconds;
    const double slope = std::max(0.0, difference / static_cast<double>(numel - options.small_numel));
    return {.seconds = std::max(0.0, small_seconds - slope * static_cast<double>(options.small_numel)),
            .seconds_per_element = slope};
  }
}

}  // namespace

CostMeasurement CostMeasurement::on(at::Device device) {
  constexpr int64_t kLargeOnGpus = int64_t{1} << 22;  // 16 MiB
  CostMeasurement options{.device = device};
  if (!device.is_cpu()) options.large_numel = kLargeOnGpus;
  return options;
}

ExchangeCost measure_exchange(CommHook& hook, const GroupPtr& group, const CostMeasurement& options) {
  check_measurement(options);
  const int64_t sent_before = hook.payload_bytes_sent();
  const ExchangeCost cost = measured_line(hook, group, options);
  collectives::count_measuring_bytes(group, hook.payload_bytes_sent() - sent_before);
  return cost;
}

}  // namespace narrowcast::hooks
