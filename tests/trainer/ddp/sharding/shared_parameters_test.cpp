#include "trainer/ddp/sharding/shared_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hierarchical_averager.h>
#include <narrowcast/outer_optimizer.h>
#include "ops/comm/node/find_nodes.h"
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/patience.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"

namespace narrowcast::testing {
namespace {

using sharding::is_shared;
using ::testing::AllOf;
using ::testing::HasSubstr;

ShardOptions shared_options(const ShardLayout& layout = {}) { return options_of(layout).share_parameters(true); }

const std::vector<ShardLayout>& shared_layouts() {
  static const std::vector<ShardLayout> layouts = {{2}, {4}, {4, 2}, {4, 3}};
  return layouts;
}

class SharedParametersTest : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(SharedParametersTest, TakesTheStepsOfTheOptimizerBitForBit) {
  const EqualTraining alone = trained_alone(GetParam(), kShardSteps);
  for (const ShardLayout& layout : shared_layouts()) {
    for (const bool whole : {false, true}) {
      run_ranks(layout.world_size, [&](int64_t rank, const auto& group) {
        EqualTraining training(GetParam());
        const at::Tensor view = training.parameters[0].detach().t();
        ShardedOptimizer sharded(*training.optimizer, group, shared_options(layout).whole_parameters(whole));
        for (int64_t step = 1; step <= kShardSteps; ++step) {
          training.compute_gradients(step);
          sharded.step();
        }
        for (size_t i = 0; i < training.parameters.size(); ++i) {
          const at::Tensor& parameter = training.parameters[i];
          EXPECT_TRUE(is_shared(parameter));
          EXPECT_TRUE(at::equal(parameter, alone.parameters[i])) << "rank " << rank << ", parameter " << i;
          EXPECT_EQ(reinterpret_cast<uintptr_t>(parameter.storage().data()) % 64, 0U);
        }
        EXPECT_TRUE(at::equal(view, training.parameters[0].t())) << "a view from before";
        wait_for_ranks(group);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SharedParametersTest, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(SharedParameters, OneRankOfANodeWritesWhatTheOthersRead) {
  run_ranks(4, [](int64_t rank, const auto& group) {
    EqualTraining training(optimizer_cases()[0]);
    const ShardedOptimizer sharded(*training.optimizer, group, shared_options({4, 3}));
    at::Tensor parameter = training.parameters[1].detach();
    const at::Tensor before = parameter.clone();
    wait_for_ranks(group);
    if (rank == 2) parameter.fill_(7);
    wait_for_ranks(group);
    EXPECT_TRUE(at::equal(parameter, rank < 3 ? at::full_like(before, 7) : before)) << "rank " << rank;
  });
}

// Modules, DistributedDataParallel and its hooks use them as before, and a state can be loaded between steps. A node of
// three ranks has one of one rank beside it.
TEST(SharedParameters, TrainAsDistributedDataParallelDoes) {
  const int64_t width = 1100;
  run_ranks(4, [&](int64_t rank, const auto& group) {
    const auto make = [&] { return torch::nn::Linear(width, width); };
    DistributedDataParallel whole(make(), group, DdpOptions().hook("int8").wire({.node_size = 3}));
    DistributedDataParallel parts(make(), group, DdpOptions().hook("int8").wire({.node_size = 3}));
    const auto load_whole = [&] {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < 2; ++i) parts.module()->parameters()[i].copy_(whole.module()->parameters()[i]);
    };
    load_whole();
    torch::optim::AdamW of_whole(whole.module()->parameters(), torch::optim::AdamWOptions(0.01));
    torch::optim::AdamW of_parts(parts.module()->parameters(), torch::optim::AdamWOptions(0.01));
    ShardedOptimizer sharded(of_parts, group, shared_options({4, 3}));
    for (int64_t step = 0; step < 3; ++step) {
      const at::Tensor inputs = seeded_randn(static_cast<uint64_t>(10 * step + rank), {2, width});
      whole.zero_grad();
      whole.backward(whole.forward(inputs).square().mean());
      of_whole.step();
      sharded.zero_grad();
      parts.backward(parts.forward(inputs).square().mean());
      sharded.step();
      EXPECT_TRUE(at::equal(parts.module()->weight, whole.module()->weight)) << "step " << step;
      EXPECT_TRUE(same_on_all_ranks(group, parts.module()->parameters()));
      if (step == 1) {
        const at::NoGradGuard no_grad;
        wait_for_ranks(group);
        for (at::Tensor& parameter : whole.module()->parameters()) parameter.mul_(0.5);
        load_whole();
        wait_for_ranks(group);
      }
    }
    EXPECT_TRUE(is_shared(parts.module()->weight));
  });
}

// Counts the ranks that have come to a step, and those that have written their shards in it.
struct Progress {
  std::atomic<int64_t> arrived = 0;
  std::atomic<int64_t> written = 0;
};

class WatchedSteps final : public torch::optim::SGD {
 public:
  WatchedSteps(const at::Tensor& parameter, std::function<void()> on_step)
      : SGD({parameter}, torch::optim::SGDOptions(0.1)), on_step_(std::move(on_step)) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    on_step_();
    return SGD::step(std::move(closure));
  }

 private:
  const std::function<void()> on_step_;
};

// The last rank comes after the others are in their steps, and its write is the last one: rank 1 waits for the others'
// writes in its own.
TEST(SharedParameters, AStepBeginsAfterAllReadsAndEndsAfterAllWrites) {
  constexpr int64_t kRanks = 3;
  constexpr int64_t kSteps = 50;
  Progress progress;
  run_ranks(kRanks, [&](int64_t rank, const auto& group) {
    const at::Tensor parameter = at::zeros({30'000}).requires_grad_();
    parameter.mutable_grad() = at::ones({30'000});
    int64_t step = 0;
    WatchedSteps optimizer(parameter, [&] {
      EXPECT_EQ(progress.arrived, kRanks * step) << "a rank still reads, step " << step;
      while (rank == 1 && progress.written < kRanks * step - 1) testing::pause_between_looks();
      at::rand({rank == 1 ? 100'000 : 1});
      ++progress.written;
    });
    ShardedOptimizer sharded(optimizer, group, shared_options());
    while (step++ < kSteps) {
      wait_for_ranks(group);  // All have checked the step before.
      if (rank == 2) at::rand({100'000});
      ++progress.arrived;
      sharded.step();
      EXPECT_EQ(progress.written, kRanks * step) << "a rank still writes, step " << step;
    }
  });
}

TEST(SharedParameters, OutliveTheOptimizerAndCanBeShardedAgain) {
  const OptimizerCase value = optimizer_cases()[2];  // SGD without a state.
  const EqualTraining alone = trained_alone(value, 2 * kShardSteps);
  run_ranks(4, [&](int64_t rank, const auto& group) {
    EqualTraining training(value);
    const auto train = [&](const ShardLayout& layout, int64_t after) {
      EqualTraining again(value);
      again.parameters = training.parameters;
      again.optimizer = value.make({again.parameters[0], again.parameters[2], again.parameters[5]},
                                   {again.parameters[1], again.parameters[3], again.parameters[4]});
      ShardedOptimizer sharded(*again.optimizer, group, shared_options(layout));
      for (int64_t step = after + 1; step <= after + kShardSteps; ++step) {
        again.compute_gradients(step);
        sharded.step();
      }
    };
    train({4, 2}, 0);
    EXPECT_TRUE(is_shared(training.parameters[0]));
    const at::Tensor kept = training.parameters[0].detach();
    wait_for_ranks(group);
    train({4, 3}, kShardSteps);
    for (size_t i = 0; i < training.parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(training.parameters[i], alone.parameters[i])) << "rank " << rank << ", parameter " << i;
    }
    EXPECT_TRUE(at::equal(kept, alone.parameters[0]));
    wait_for_ranks(group);
  });
}

TEST(SharedParametersErrors, WhatCannotBeSharedIsRefusedOnAllRanksAndNotChanged) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    const auto refusal = [&](const std::vector<at::Tensor>& parameters, const ShardOptions& options) {
      torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1));
      const std::string message = error_message<c10::ValueError>([&] { ShardedOptimizer(sgd, group, options); });
      if (!options.share_parameters()) return message;
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_FALSE(is_shared(parameters[i]));
        EXPECT_TRUE(sgd.param_groups()[0].params().at(i).is_same(parameters[i]));
      }
      return message;
    };
    const at::Tensor flat = at::zeros({500});
    const at::Tensor begin = flat.narrow(0, 0, 300).requires_grad_();
    EXPECT_THAT(refusal({begin}, shared_options()),
                HasSubstr("share_parameters on rank 0: parameter 0 of the optimizer, of sizes [300], lies in a storage "
                          "of 2000 bytes with other data"));
    const at::Tensor all = at::zeros({500}).requires_grad_();
    EXPECT_THAT(refusal({all, all.detach().requires_grad_()}, shared_options()), HasSubstr("parameter 1"));
    const at::Tensor differs = at::full({200}, rank == 2 ? 1. : 2.).requires_grad_();
    EXPECT_THAT(refusal({all, differs}, shared_options()),
                HasSubstr("parameter 1 of the optimizer, of sizes [200], is not equal on the ranks of a node"));
    EXPECT_EQ(refusal({differs}, ShardOptions()), "nothing was thrown") << "without sharing they need not be";
    EXPECT_THAT(refusal({all}, ShardOptions().share_parameters(rank == 0)), HasSubstr("share_parameters differs"));
    EXPECT_EQ(refusal({at::zeros({0}).requires_grad_()}, ShardOptions()), "nothing was thrown");
    EXPECT_EQ(at::sum(all).item<double>(), 0);
  });
}

TEST(SharedParametersErrors, MemoryThatTheSystemRefusesIsNamed) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    node::find_nodes(group);
    const at::Tensor parameter = at::ones({1000}).requires_grad_();
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1));
    wait_for_ranks(group);
    const auto limit = rank == 0 ? std::make_unique<FileSizeLimit>(3999) : nullptr;  // It limits the whole process.
    wait_for_ranks(group);
    EXPECT_THAT(error_message<c10::ValueError>([&] { ShardedOptimizer(sgd, group, shared_options()); }),
                AllOf(HasSubstr("share_parameters on rank 0: shared memory of 4032 bytes"),
                      HasSubstr("the size of files is limited to 3999")));
    EXPECT_FALSE(is_shared(parameter));
    wait_for_ranks(group);
  });
}

// Nothing was written when the step fails, and the others fail as well.
TEST(SharedParametersErrors, AParameterThatWasMovedFailsTheStep) {
  run_ranks(3, [](int64_t rank, const auto& group) {
    const at::Tensor parameter = at::zeros({300}).requires_grad_();
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1));
    ShardedOptimizer sharded(sgd, group, shared_options());
    at::Tensor shared = parameter.detach();
    parameter.mutable_grad() = at::ones({300});
    if (rank == 1) at::Tensor(parameter).set_data(at::zeros({300}));
    EXPECT_THAT(error_message<c10::Error>([&] { shared.resize_({400}); }), HasSubstr("not resizable"));
    if (rank == 1) {
      EXPECT_THAT(error_message<c10::ValueError>([&] { sharded.step(); }),
                  HasSubstr("parameter 0 of the optimizer, of sizes [300], no longer lies in the memory"));
    } else {
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { sharded.step(); }),
                  HasSubstr("rank 1 of this node cancelled an exchange"));
    }
    EXPECT_EQ(at::sum(shared).item<double>(), 0);
  });
}

TEST(SharedParametersErrors, AStepThatFailsOnOneRankFailsOnAllOfTheNode) {
  run_ranks(3, [](int64_t rank, const auto& group) {
    const at::Tensor parameter = at::zeros({300}).requires_grad_();
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1));
    ShardedOptimizer sharded(sgd, group, shared_options());
    parameter.mutable_grad() = rank == 1 ? at::ones({300}).to_sparse() : at::ones({300});
    if (rank == 1) {
      EXPECT_THAT(error_message<c10::ValueError>([&] { sharded.step(); }), HasSubstr("layout Sparse"));
    } else {
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { sharded.step(); }),
                  HasSubstr("rank 1 of this node cancelled an exchange"));
    }
  });
}

// Each of them would write values that differ between the ranks of a node.
TEST(SharedParametersErrors, WhateverElseWritesParametersRefusesThem) {
  run_ranks(2, [](int64_t /*rank*/, const auto& group) {
    const at::Tensor parameter = at::zeros({300}).requires_grad_();
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1));
    torch::optim::SGD other({parameter}, torch::optim::SGDOptions(0.1));
    OuterOptimizer before(other, group, OuterOptions().sync_every(2));
    const ShardedOptimizer sharded(sgd, group, shared_options());
    EXPECT_THAT(error_message<c10::ValueError>([&] { before.step(); }),
                HasSubstr("OuterOptimizer cannot change a parameter of sizes [300]"));
    EXPECT_THAT(error_message<c10::ValueError>([&] { OuterOptimizer(other, group, OuterOptions().sync_every(2)); }),
                HasSubstr("OuterOptimizer cannot change parameter 0 of the optimizer"));
    torch::optim::SGD third({parameter}, torch::optim::SGDOptions(0.1));
    EXPECT_THAT(error_message<c10::ValueError>([&] { ShardedOptimizer(third, group); }),
                HasSubstr("a ShardedOptimizer without share_parameters cannot change parameter 0 of the optimizer"));
    HierarchicalAverager averager(group, {{1, 2}});
    EXPECT_THAT(
        error_message<c10::ValueError>([&] { averager.average({parameter}); }),
        HasSubstr("HierarchicalAverager cannot change parameter 0 of sizes [300], which lies in memory that the "
                  "node's ranks share"));
    EXPECT_EQ(averager.step(), 0);
    EXPECT_EQ(averager.average({parameter.clone()}), 2) << "a copy";
  });
}

}  // namespace
}  // namespace narrowcast::testing
