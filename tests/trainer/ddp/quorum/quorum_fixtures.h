// Fixtures of tests of outer optimizers with a quorum: ranks that are late by construction, and what must come out.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include <narrowcast/wire_format.h>
#include "tests/support/rank_progress.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::testing {

// All steps of a rank move its parameters by the same numbers, so that a difference follows from its number of steps.
class QuorumRank {
 public:
  static constexpr int64_t kNumel = 5000;  // Two blocks of sparse formats; the last one is not whole.
  static constexpr double kStep = 0.25;

  // `motion`: which numbers; equal for ranks of one group.
  QuorumRank(int64_t motion, const ProcessGroupPtr& group, const OuterOptions& options,
             const std::vector<int64_t>& groups = {}) {
    parameter.mutable_grad() = gradient_of(motion);
    sgd = std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(kStep));
    outer = std::make_unique<OuterOptimizer>(*sgd, group, options, groups);
    outer->set_notes([this] {
      if (before_send) before_send();
      return OuterOptimizer::Notes{static_cast<double>(std::exchange(unsent, 0))};
    });
  }

  static at::Tensor gradient_of(int64_t motion) { return seeded_randn(static_cast<uint64_t>(motion) + 1, {kNumel}); }

  // A step, and whether it has ended rounds.
  bool step() {
    ++taken;
    ++unsent;
    outer->step();
    return note_rounds();
  }

  void finish() {
    outer->finish();
    note_rounds();
  }

  bool note_rounds() {
    const auto ended = outer->take_rounds();
    rounds.insert(rounds.end(), ended.begin(), ended.end());
    if (!ended.empty()) references[std::ssize(rounds)] = outer->reference().clone();
    return !ended.empty();
  }

  at::Tensor parameter = at::zeros({kNumel}).requires_grad_();
  std::unique_ptr<torch::optim::SGD> sgd;
  std::unique_ptr<OuterOptimizer> outer;
  std::function<void()> before_send;
  int64_t taken = 0;
  int64_t unsent = 0;
  std::vector<OuterOptimizer::Round> rounds;
  std::map<int64_t, at::Tensor> references;  // By the number of rounds that have ended, where a step has ended there.
};

// The same rounds in one process. Notes have the steps of each rank of a group since its last message.
class QuorumSimulation {
 public:
  // `motions`: by group. `sizes`: ranks of each group; empty: one each.
  QuorumSimulation(const OuterOptions& options, std::vector<int64_t> motions, std::vector<int64_t> sizes = {})
      : options_(options),
        motions_(std::move(motions)),
        sizes_(std::move(sizes)),
        residuals_(motions_.size()),
        velocity_(at::zeros({QuorumRank::kNumel})),
        reference(at::zeros({QuorumRank::kNumel})) {
    if (sizes_.empty()) sizes_.assign(motions_.size(), 1);
  }

  void take(const OuterOptimizer::Round& round) {
    double weights = 0;
    at::Tensor sum = at::zeros({QuorumRank::kNumel});
    for (size_t i = 0; i < round.groups.size(); ++i) {
      const auto group = static_cast<size_t>(round.groups[i]);
      const double steps = round.notes[i][0];
      const double weight = steps * static_cast<double>(sizes_[group]);
      sum += sent(group, QuorumRank::gradient_of(motions_[group]) * (QuorumRank::kStep * steps)) * weight;
      weights += weight;
    }
    const at::Tensor mean = sum / weights;
    const double momentum = options_.effective_momentum();
    velocity_ = velocity_ * momentum + mean;
    const bool looks_ahead = options_.optimizer() == OuterKind::kNesterov;
    reference -= (looks_ahead ? mean + velocity_ * momentum : velocity_) * options_.effective_learning_rate();
  }

 private:
  at::Tensor sent(size_t group, const at::Tensor& difference) {
    const WireFormat format = *options_.wire().format;
    if (!options_.wire().error_feedback) return decode(encode(difference, format), format, QuorumRank::kNumel);
    at::Tensor& residual = residuals_[group];
    const at::Tensor whole = residual.defined() ? residual * options_.effective_error_decay() + difference : difference;
    at::Tensor decoded = decode(encode(whole, format), format, QuorumRank::kNumel);
    residual = whole - decoded;
    return decoded;
  }

  const OuterOptions options_;
  const std::vector<int64_t> motions_;
  std::vector<int64_t> sizes_;
  std::vector<at::Tensor> residuals_;
  at::Tensor velocity_;

 public:
  at::Tensor reference;
};

inline OuterOptions quorum_options(int64_t sync_every, int64_t quorum, WireFormat format = WireFormat::kFp32) {
  return OuterOptions()
      .sync_every(sync_every)
      .optimizer(OuterKind::kSgd)
      .quorum(quorum)
      .wire({.format = format, .error_feedback = format != WireFormat::kFp32});
}

}  // namespace narrowcast::testing
