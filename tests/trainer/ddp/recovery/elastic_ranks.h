// Ranks of an ElasticRun, each with another program, whose steps fail where a test wants it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/comm/groups/broken_groups.h"
#include "tests/support/breakable_group.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "trainer/ddp/recovery/elastic_run.h"

namespace narrowcast::recovery {

inline constexpr int64_t kSteps = 8;
inline constexpr int64_t kRanks = 3;

// Where a step fails as a lost peer makes it fail.
enum class Place {
  kForward,
  kBeforeZeroGrad,  // The state has changed, and gradients are left.
  kAfterUpdate,
  kBehindTheHost,  // The step returns, and its collectives on a GPU, on which its update depends, have been aborted.
};

struct Failure {
  int64_t step = -1;
  Place place = Place::kForward;
};

inline void lose() { TORCH_CHECK_WITH(DistBackendError, false, "rank 0: rank 1 is lost"); }

struct Case {
  std::string name;
  std::string hook = "none";
  bool copies_state = true;
  bool has_buffers = false;
  std::optional<int64_t> connections = std::nullopt;
};

// The program of one rank: what it owns outlives each group.
class Program {
 public:
  explicit Program(const Case& value) : optimizer_(make_net(value), torch::optim::AdamWOptions(0.01)), value_(value) {
    state.add("net", *net_);
    state.add("optimizer", optimizer_);
    state.add("steps", steps_);
    state.add(
        "losses",
        [this] {
          return TensorMap{{"all", at::tensor(losses_, at::kDouble)}};
        },
        [this](const TensorMap& saved) {
          const at::Tensor all = saved.at("all");
          losses_.assign(all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel());
        });
    options.copies_state = value.copies_state;
  }

  ElasticSteps make(const ProcessGroupPtr& group) {
    DdpOptions ddp_options = DdpOptions().bucket_cap_mb(0.0001).hook(value_.hook);
    if (value_.hook == "int8") {
      ddp_options.wire({.node_size = 1, .link_gbit = 1, .link_us = 100, .connections = value_.connections});
    }
    auto ddp = std::make_shared<DistributedDataParallel<torch::nn::Sequential>>(net_, group, ddp_options);
    ElasticSteps steps;
    steps.take = [this, ddp](int64_t step) { return take(*ddp, step); };
    steps.buckets_are_settled = [ddp] { return ddp->buckets_are_settled(); };
    steps.sync_buffers = [ddp] { ddp->sync_buffers(); };
    steps.state = [ddp] { return ddp->state(); };
    steps.load_state = [ddp](const ReducerState& saved) { ddp->load_state(saved); };
    return steps;
  }

  TensorMap result() const {
    TensorMap tensors = {{"steps", steps_.clone()}, {"losses", at::tensor(losses_, at::kDouble)}};
    for (const auto& item : net_->named_parameters()) tensors[item.key()] = item.value().detach().clone();
    for (const auto& item : net_->named_buffers()) tensors[item.key()] = item.value().clone();
    return tensors;
  }

  ElasticState state;
  ElasticOptions options;
  Failure failure;
  std::vector<ElasticRecovery> recoveries;

 private:
  std::vector<at::Tensor> make_net(const Case& value) {
    net_ = torch::nn::Sequential(torch::nn::Linear(4, 6));
    if (value.has_buffers) net_->push_back(torch::nn::BatchNorm1d(6));
    net_->push_back(torch::nn::Linear(6, 1));
    return net_->parameters();
  }

  bool take(DistributedDataParallel<torch::nn::Sequential>& ddp, int64_t step) {
    if (failure.step == step && failure.place == Place::kForward) lose();
    const int64_t rank = ddp.process_group()->getRank();
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(kRanks * step + rank));
    const at::Tensor inputs = at::randn({8, 4}, generator);
    const at::Tensor loss = (ddp.forward(inputs) - inputs.sum(1, true)).square().mean();
    ddp.backward(loss);
    optimizer_.step();
    if (failure.step == step && failure.place == Place::kBeforeZeroGrad) lose();
    optimizer_.zero_grad();
    steps_.add_(1);
    losses_.push_back(static_cast<double>(step));
    if (failure.step == step && failure.place == Place::kAfterUpdate) lose();
    if (failure.step == step && failure.place == Place::kBehindTheHost) {
      testing::add_breakable(ddp.process_group());
      collectives::break_off(ddp.process_group(), "rank 0: rank 1 is lost");
    }
    return step + 1 < kSteps;
  }

  torch::nn::Sequential net_ = nullptr;
  torch::optim::AdamW optimizer_;
  const Case value_;
  at::Tensor steps_ = at::zeros({}, at::kLong);
  std::vector<double> losses_;
};

// A process of one rank.
struct Rank {
  explicit Rank(const Case& value) : program(value) {
    program.options.on_recovery = [this](const ElasticRecovery& recovery) { program.recoveries.push_back(recovery); };
  }
  Program program;
  ElasticRun::MakeSteps make = [this](const ProcessGroupPtr& group) { return program.make(group); };
  ElasticRun run{program.state, program.options, make};
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

inline std::unique_ptr<Rank> new_rank(const Case& value) {
  at::manual_seed(1);
  return std::make_unique<Rank>(value);
}

inline Ranks new_ranks(const Case& value) {
  Ranks ranks;
  for (int64_t rank = 0; rank < kRanks; ++rank) ranks.push_back(new_rank(value));
  return ranks;
}

enum class Outcome { kDone, kLoss };

// Runs all ranks in a new group. After a loss each rank has failed: in its own step, or because another one did.
inline void run_all(Ranks& ranks, Outcome outcome, const Attempt& attempt = {}) {
  const auto run = [&] {
    testing::run_ranks(
        kRanks, [&](int64_t rank, const ProcessGroupPtr& group) { ranks[rank]->run.take_steps(group, attempt); });
  };
  if (outcome == Outcome::kLoss) {
    EXPECT_THROW(run(), c10::DistBackendError);
  } else {
    run();
  }
}

// Runs all ranks in the next group to the end.
inline void recover(Ranks& ranks) {
  for (auto& rank : ranks) rank->program.failure = {};
  run_all(ranks, Outcome::kDone, {.env = {}, .interrupted_at = std::chrono::steady_clock::now()});
}

inline void expect_equal(const TensorMap& found, const TensorMap& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
}

inline TensorMap undisturbed(const Case& value) {
  Ranks ranks = new_ranks(value);
  run_all(ranks, Outcome::kDone);
  return ranks[0]->program.result();
}

}  // namespace narrowcast::recovery
