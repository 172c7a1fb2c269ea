// The hook that takes, for each bucket, the fastest of others.
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

// By what the hook decides; a test brings its own.
struct AutoMeasures {
  // A collective: what an exchange of a fresh hook of that name takes, the same on all ranks. Empty: measured, or where
  // the options say something of the link computed from it.
  std::function<ExchangeCost(const std::string& name)> cost = nullptr;
  std::function<double()> now = nullptr;  // Seconds, thread-safe. Empty: a steady clock.
  int64_t window = 100;                   // Steps, >= 1, after which the link is looked at.
};

// What exchanges are predicted to take, one after the other; the same on all ranks.
struct PredictedExchanges {
  double seconds = 0;
  double sent = 0;  // The link's part of it, > 0; the rest is that of codecs and of the node's memory.
  int64_t count = 0;

  // How many times as long as predicted the link has taken, where the exchanges have taken `took` seconds: 1 if they
  // differ by less than machines do, or if that is between the two numbers that are possible. One exchange takes the
  // link's part and the rest; of several two are in flight at once, so that the link may work on one of them while
  // processors work on the other.
  double link_factor(double took) const;
};

// When the exchanges of a step on one rank began and ended. Thread-safe: futures complete on other threads.
class ExchangeWatch;

// "auto": gives each bucket to one of its candidates (auto_choice.h), hooks of their own, by the bucket's size and what
// exchanges of that size are predicted to take. Made by a collective, in which all candidates are measured; all ranks
// decide alike. With one rank, and on GPUs, where nothing is measured so far, all buckets go to the first candidate,
// allreduce, in one level: kAutoOnGpus tells it, and check_auto_on_gpus what it makes void.
//
// After each window of steps the ranks work out what the link has taken of the last stretch of a step in which
// something was in flight (PredictedExchanges), on the rank and in the step with the least: waiting for slower ranks,
// and computing beside it, only add. If it is a third more than predicted, or less, the link has changed by as much,
// and the hook decides anew, on all ranks in the same step.
class AutoHook final : public TableHook {
 public:
  // A collective. c10::ValueError as check_auto_on_gpus where the group moves tensors on GPUs.
  AutoHook(const HookRow& row, const HookOptions& options, const AutoMeasures& measures = {});
  ~AutoHook() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  std::string nodes() const override;
  std::string decision() const override;
  std::optional<double> predicted_seconds(int64_t numel) const override;

  // The candidates' own states, what they were predicted to take, by which link, and how often that had changed. On the
  // same nodes a training resumes with the same decisions.
  HookState state(const std::vector<NamedParameter>& parameters) const override;
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override;

  void rescale_state(double factor) override;

  // How often the link was found to have changed.
  int64_t changes() const { return changes_; }
  // The name of the hook that a bucket of so many elements would be given to.
  const std::string& taken_for(int64_t numel) const { return candidates_[choose_candidate(candidates_, numel)].name; }

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
  int64_t window_;
  std::vector<AutoCandidate> candidates_;
  std::vector<std::unique_ptr<CommHook>> hooks_;  // By candidate.
  std::shared_ptr<ExchangeWatch> watch_;
  std::optional<Agreement> agreement_;  // Under way since the step before.
  PredictedExchanges step_;             // So far.
  bool is_resumed_ = false;
  int64_t last_bucket_ = -1;
  int64_t steps_ = 0;  // Since the window began.
  int64_t changes_ = 0;
};

// What the hook does on GPUs.
inline constexpr const char* kAutoOnGpus = "allreduce: on GPUs nothing is measured so far";

// What the table knows of it.
HookRow auto_row();

// c10::ValueError for options that would have an effect on its candidates only, but for those that ask for one level.
void check_auto_on_gpus(const WireOptions& wire);

}  // namespace narrowcast::hooks
