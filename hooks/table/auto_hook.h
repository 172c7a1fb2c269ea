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
#include "hooks/row/hook_row.h"
#include "hooks/table/auto_choice.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::hooks {

// Sources of the hook's decision; tests replace them.
struct AutoMeasures {
  // A collective: the cost of an all-reduce with a new hook of that name, the same on all ranks. Empty: it is measured;
  // if the options give the link, it is computed from that.
  std::function<ExchangeCost(const std::string& name)> cost = nullptr;
  std::function<double()> now = nullptr;  // Seconds; thread-safe. Empty: a steady clock.
  int64_t window = 100;                   // Steps, >= 1, between two checks of the link.
};

// Predicted cost of consecutive all-reduces; the same on all ranks.
struct PredictedExchanges {
  double seconds = 0;
  double sent = 0;  // The link's part of `seconds`, > 0; the rest is codecs and the node's memory.
  int64_t count = 0;

  // The link's actual time divided by its predicted time, if the all-reduces took `took` seconds. Returns 1 if `took`
  // differs from the prediction only by noise. One all-reduce takes the link's part plus the rest. With several, two
  // are in flight at once, so the link may overlap with the processors' work. The factor then lies between two values;
  // if 1 lies between them, returns 1.
  double link_factor(double took) const;
};

// Measures when the all-reduces of a step begin and end on one rank. Thread-safe: futures complete on other threads.
class ExchangeWatch;

// "auto": passes each bucket to one of its candidates (auto_choice.h), according to the bucket's size and the predicted
// cost. Making it is a collective that measures all candidates; all ranks decide the same. With one rank, and on GPUs,
// where nothing is measured yet, all buckets go to the first candidate, allreduce, in one level. On GPUs decision()
// returns kAutoOnGpus, and check_auto_on_gpus rejects options without effect.
//
// After each window of steps the ranks compare the link's time with its prediction. Each rank looks at the last stretch
// of each step during which something was in flight (PredictedExchanges). The least factor over ranks and steps counts,
// because waiting for slower ranks and concurrent computation only add time. If it is at least a third above or below
// 1, the link has changed by that factor, and all ranks decide again in the same step.
class AutoHook final : public TableHook {
 public:
  // A collective. Throws as check_auto_on_gpus if the group moves tensors on GPUs.
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
  ExchangeCost cost_of(const std::string& name, const AutoMeasures& measures) const;
  void begin_step();
  void agree_on(double factor);
  void take_agreed(double factor);
  void resume_decision(const HookState& saved);
  void resume_link(const HookState& saved);

  const HookOptions options_;
  const bool on_gpu_;
  const std::shared_ptr<const node::FoundNodes> nodes_;
  collectives::Link link_;
  const int64_t window_;
  std::vector<AutoCandidate> candidates_;
  std::vector<std::unique_ptr<CommHook>> hooks_;  // By candidate.
  std::shared_ptr<ExchangeWatch> watch_;
  std::optional<Agreement> agreement_;  // In progress since the step before.
  PredictedExchanges step_;             // The step so far.
  bool averages_shards_ = false;
  bool is_resumed_ = false;
  int64_t last_bucket_ = -1;
  int64_t steps_ = 0;  // In which the link was watched.
  int64_t changes_ = 0;
};

// The hook's decision() on GPUs.
inline constexpr const char* kAutoOnGpus = "allreduce: on GPUs nothing is measured";

// The row of the hook auto for the table.
HookRow auto_row();

// c10::ValueError for options that only affect candidates. Options that request one level are allowed.
void check_auto_on_gpus(const WireOptions& wire);

}  // namespace narrowcast::hooks
