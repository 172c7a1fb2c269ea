// The hook that sends gradients in wire formats.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "hooks/error_feedback.h"
#include "hooks/mean_hook.h"

namespace narrowcast::hooks {

// "quantized_allreduce": averages buckets in a wire format (docs/wire_format.md), in one or two hops. Sends the same
// share of float32's bytes for any number of ranks. With one rank a bucket stays as it is. It has several names: the
// table (hooks/hook_table.h) knows them, and their formats.
class QuantizedAllReduceHook final : public MeanHook {
 public:
  // The options say a format. `name` outlives the hook.
  QuantizedAllReduceHook(std::string_view name, const HookOptions& options);

  HookState state(const std::vector<NamedParameter>& parameters) const override;
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override;
  void rescale_state(double factor) override;

 private:
  collectives::MeanCall make_call(const c10d::GradBucket& bucket, const Layout& layout) override;

  static constexpr int64_t kAfterAllBuckets = std::numeric_limits<int64_t>::max();

  ErrorFeedback feedback_;
  uint64_t step_ = 0;  // Steps whose first bucket has come: of those buckets that this hook gets.
  int64_t last_bucket_ = kAfterAllBuckets;
};

}  // namespace narrowcast::hooks
