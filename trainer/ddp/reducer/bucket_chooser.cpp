#include "trainer/ddp/reducer/bucket_chooser.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>
#include "hooks/table/exchange_cost.h"
#include "hooks/table/hook_table.h"
#include "ops/comm/node/node_layout.h"
#include "trainer/ddp/reducer/reducer.h"

namespace narrowcast {
namespace {

// The first pass is slow, because its memory is new; the faster one of the others counts.
constexpr int64_t kPasses = 3;

constexpr int64_t kMostWithoutChoice = int64_t{2} << 20;  // bytes

int64_t bytes_of_all(const std::vector<at::Tensor>& parameters) {
  return std::accumulate(parameters.begin(), parameters.end(), int64_t{0}, [](int64_t bytes, const at::Tensor& tensor) {
    return bytes + static_cast<int64_t>(tensor.nbytes());
  });
}

// Whether each rank will be a separate group, after steps in which all ranks average.
bool ends_alone(const hooks::CommHook& hook) {
  const std::vector<int64_t> groups = hook.groups();
  return !groups.empty() && !node::NodeLayout(groups).has_levels();
}

}  // namespace

bool chooses_bucket_size(const DdpOptions& options, const std::vector<at::Tensor>& parameters, int64_t world_size) {
  return !options.bucket_cap_mb().has_value() && world_size > 1 && bytes_of_all(parameters) > kMostWithoutChoice &&
         std::all_of(parameters.begin(), parameters.end(), [](const at::Tensor& tensor) { return tensor.is_cpu(); });
}

DdpOptions with_first_bucket_size(const DdpOptions& options, const std::vector<at::Tensor>& parameters,
                                  int64_t world_size) {
  if (options.bucket_cap_mb().has_value()) {
    return options;
  }
  const bool chooses = chooses_bucket_size(options, parameters, world_size);
  if (chooses && options.hook() == hooks::kNoHook) {
    return options;
  }
  return DdpOptions(options).bucket_cap_mb(chooses ? kMeasuredBucketMb : DdpOptions().bucket_cap_mb());
}

BucketChooser::BucketChooser(const std::vector<NamedTensor>& parameters, ProcessGroupPtr group,
                             const DdpOptions& options)
    : parameters_(tensors_of(parameters)), group_(std::move(group)), options_(options), times_(parameters_) {}

bool BucketChooser::is_due() const { return times_.passes() >= kPasses; }

BackwardPass BucketChooser::slowest_pass() const {
  BackwardPass pass{.numel = {}, .ready_seconds = all_reduce_max(group_, times_.seconds())};
  for (const at::Tensor& parameter : parameters_) {
    pass.numel.push_back(parameter.numel());
  }
  return pass;
}

// Measures with a separate hook, so that the state of the training's hook does not change.
ExchangeSeconds BucketChooser::exchange_seconds(const hooks::CommHook* in_use,
                                                std::optional<hooks::ShardRounding> shards) const {
  if (in_use != nullptr && in_use->predicted_seconds(1).has_value()) {
    return [in_use](int64_t numel) { return in_use->predicted_seconds(numel).value(); };
  }
  const std::string& name = options_.hook() == hooks::kNoHook ? hooks::kAllReduceHook : options_.hook();
  hooks::HookOptions options = options_.hook_options(group_);
  if (in_use == nullptr || !ends_alone(*in_use)) {
    options = hooks::with_immediate_start(name, options);  // As in most steps.
  }
  const auto hook = hooks::create_comm_hook(name, options);
  if (shards) hook->average_shards(shards);
  return hooks::measure_exchange(*hook, group_);
}

BucketChooser::Result BucketChooser::choose(const hooks::CommHook* in_use,
                                            std::optional<hooks::ShardRounding> shards) const {
  return with_network_errors(group_->getRank(), "choosing the size of buckets", [&] {
    const BackwardPass pass = slowest_pass();
    const std::vector<size_t> order = ready_order(pass.ready_seconds);
    std::vector<SizedBuckets> candidates;
    for (const double size : bucket_sizes(bytes_of_all(parameters_))) {
      if (shards && size > kMostMbOfShards) break;
      const DdpOptions sized = DdpOptions(options_).bucket_cap_mb(size);
      candidates.push_back({.cap_mb = size, .buckets = fill_buckets(parameters_, order, sized)});
    }
    BucketChoice choice = choose_bucket_size(candidates, pass, exchange_seconds(in_use, shards));
    return Result{std::move(choice), std::move(candidates[static_cast<size_t>(choice.chosen)].buckets)};
  });
}

}  // namespace narrowcast
