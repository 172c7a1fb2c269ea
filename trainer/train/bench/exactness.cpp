#include "trainer/train/bench/exactness.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>
#include "hooks/exchange_cost.h"
#include "hooks/hook_table.h"
#include "hooks/levels.h"
#include "trainer/train/bench/hook_times.h"
#include "trainer/train/training/evaluation.h"

namespace narrowcast::bench {
namespace {

class ExactnessRun {
 public:
  ExactnessRun(const ProcessGroupPtr& group, int64_t numel)
      : group_(group), buckets_(numel, 1, static_cast<uint64_t>(group->getRank())) {
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
    const hooks::SentBucket sent = {.gradients = buckets_.gradients()};
    const auto terms = hooks::hook_row(name).error_terms(sent, hooks::find_hook_nodes(options)->layout, options);
    return compared(name, sum_over_ranks(terms.sum()));
  }

  int64_t payload_bytes_sent() const { return payload_bytes_sent_; }

 private:
  // In place, float64.
  at::Tensor sum_over_ranks(at::Tensor term) {
    std::vector<at::Tensor> sum = {std::move(term)};
    with_network_errors(group_->getRank(), "sum in float64 for the exact mean",
                        [&] { group_->allreduce(sum)->wait(); });
    payload_bytes_sent_ += hooks::ring_all_reduce_bytes(static_cast<int64_t>(sum[0].nbytes()), group_->getSize());
    return sum[0];
  }

  HookExactness compared(const std::string& name, const at::Tensor& tolerance) const {
    const at::Tensor& result = buckets_.buffer(0);
    const at::Tensor difference = result.to(at::kDouble).sub_(mean_).abs_();
    const double error = difference.square().sum().item<double>() / squares_of_mean_;
    // A difference that is no number is outside, too.
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

Exactness measure_exactness(const ProcessGroupPtr& group, const std::vector<std::string>& names, int64_t numel,
                            const hooks::WireOptions& wire) {
  ExactnessRun run(group, numel);
  Exactness exactness;
  for (const std::string& name : names) {
    if (hooks::hook_row(name).takes_power_sgd) continue;
    exactness.hooks.push_back(run.of(name, wire));
  }
  exactness.payload_bytes_sent = run.payload_bytes_sent();
  return exactness;
}

}  // namespace narrowcast::bench
