// The hook that chooses the fastest of several hooks for each bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/row/execution.h"
#include "hooks/row/hook_row.h"
#include "hooks/table/auto_choice.h"
#include "hooks/table/exchange_watch.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::hooks {

// Sources of the hook's decision; tests replace them.
struct AutoMeasures {
  // A collective: the cost of an all-reduce with a new hook of that name, the same on all ranks. Empty: it is measured;
  // if the options give the link, it is computed from that.
  std::function<ExchangeCost(const std::string& name)> cost = nullptr;
  std::function<double()> now = nullptr;  // Seconds; thread-safe. Empty: a steady clock, on GPUs events of streams.
  int64_t window = 100;                   // Steps, >= 1, between two checks of the link.
  std::optional<at::Device> device = std::nullopt;  // Where all-reduces are measured. Empty: measured_device.
};

// "auto": passes each bucket to one of its candidates (auto_choice.h), according to the bucket's size and the predicted
// cost. Making it is a collective that measures all candidates; all ranks decide the same. With one rank, and on GPUs
// without NCCL, nothing is measured: all buckets go to the first candidate, allreduce, in one level, and
// check_unmeasured rejects options without effect.
//
// After each window of steps the ranks compare the link's time with its prediction (ExchangeWatch). The least factor
// over ranks and steps counts, because waiting for slower ranks and concurrent computation only add time. If it is at
// least a third above or below 1, the link has changed by that factor, and all ranks decide again in the same step.
class AutoHook final : public TableHook {
 public:
  // A collective. Throws as check_unmeasured if the group moves tensors on GPUs without NCCL.
  AutoHook(const HookRow& row, const HookOptions& options, const AutoMeasures& measures = {});
  ~AutoHook() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  std::string nodes() const override;
  std::string decision() const override;
  std::optional<double> predicted_seconds(int64_t numel) const override;

  // The candidates' states, their predicted costs, the link, and how often it changed. On the same nodes a training
  // resumes with the same decisions.
  HookState state(const std::vector<NamedParameter>& parameters) const override;
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override;

  void rescale_state(double factor) override {
    for (const auto& hook : hooks_) hook->rescale_state(factor);
  }
  std::vector<int64_t> average_shards(std::optional<ShardRounding> rounding) override;

  // Number of detected changes of the link.
  int64_t changes() const { return changes_; }
  // The name of the hook for a bucket of `numel` elements.
  const std::string& hook_for(int64_t numel) const { return candidates_[choose_candidate(candidates_, numel)].name; }

 private:
  struct Agreement {
    at::Tensor factor;  // float64 [1]: the least of the ranks
    c10::intrusive_ptr<c10d::Work> work;
  };
  bool is_on_gpus() const { return !device_.has_value() || !device_->is_cpu(); }
  bool watches() const { return link_.between_nodes.has_value() && !averages_shards_; }
  ExchangeCost cost_of(const std::string& name, const AutoMeasures& measures) const;
  void begin_step();
  void agree_on(double factor);
  void take_agreed(double factor);
  void resume_decision(const HookState& saved);
  void resume_link(const HookState& saved);

  const HookOptions options_;
  const std::optional<at::Device> device_;  // Where all-reduces are measured; empty if they are not.
  const std::shared_ptr<const node::FoundNodes> nodes_;
  collectives::Link link_;
  const int64_t window_;
  std::vector<AutoCandidate> candidates_;
  std::vector<std::unique_ptr<CommHook>> hooks_;  // By candidate.
  const std::shared_ptr<HookTurns> turns_;
  std::shared_ptr<ExchangeWatch> watch_;
  std::optional<Agreement> agreement_;  // In progress since the step before.
  PredictedExchanges step_;             // The step so far.
  bool averages_shards_ = false;
  bool is_resumed_ = false;
  int64_t last_bucket_ = -1;
  int64_t steps_ = 0;  // In which the link was watched.
  int64_t changes_ = 0;
};

// The hook's decision() on GPUs without NCCL.
inline constexpr const char* kUnmeasured = "allreduce: on GPUs nothing is measured without NCCL";

// The row of the hook auto for the table.
HookRow auto_row();

// c10::ValueError for options that have no effect on allreduce. Options that request one level are allowed.
void check_unmeasured(const WireOptions& wire);

}  // namespace narrowcast::hooks
