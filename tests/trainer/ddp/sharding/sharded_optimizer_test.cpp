#include <narrowcast/sharded_optimizer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>

#include <optional>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class ShardedOptimizerTest : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(ShardedOptimizerTest, TakesTheStepsOfTheOptimizerBitForBit) {
  const EqualTraining alone = trained_alone(GetParam(), kShardSteps);
  for (const ShardLayout& layout : layouts()) {
    run_ranks(layout.world_size, [&](int64_t rank, const auto& group) {
      EqualTraining training(GetParam());
      ShardedOptimizer sharded(*training.optimizer, group, options_of(layout));
      for (int64_t step = 1; step <= kShardSteps; ++step) {
        training.compute_gradients(step);
        sharded.step();
      }
      for (size_t i = 0; i < training.parameters.size(); ++i) {
        EXPECT_TRUE(at::equal(training.parameters[i], alone.parameters[i])) << "rank " << rank << ", parameter " << i;
      }
      int64_t own = 0;
      for (const auto& of_group : training.optimizer->param_groups()) {
        for (const at::Tensor& piece : of_group.params()) own += piece.numel();
      }
      EXPECT_EQ(own, sharded.own_elements());
      EXPECT_LE(std::abs(own - sharded.elements() / sharded.shards()), 64);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ShardedOptimizerTest, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& info) { return info.param.name; });

// Shards with more elements than one job exchanges, of nodes of three ranks and one; and gradients that
// DistributedDataParallel averages.
TEST(ShardedOptimizer, TrainsAsDistributedDataParallelDoes) {
  const int64_t width = 1900;
  run_ranks(4, [&](int64_t rank, const auto& group) {
    const auto make = [&] { return torch::nn::Linear(width, width); };
    DistributedDataParallel whole(make(), group, DdpOptions().hook("int8"));
    DistributedDataParallel parts(make(), group, DdpOptions().hook("int8"));
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < 2; ++i) parts.module()->parameters()[i].copy_(whole.module()->parameters()[i]);
    }
    torch::optim::AdamW of_whole(whole.module()->parameters(), torch::optim::AdamWOptions(0.01));
    torch::optim::AdamW of_parts(parts.module()->parameters(), torch::optim::AdamWOptions(0.01));
    ShardedOptimizer sharded(of_parts, group, ShardOptions().node_size(3));
    for (int64_t step = 0; step < 2; ++step) {
      const at::Tensor inputs = seeded_randn(static_cast<uint64_t>(10 * step + rank), {2, width});
      whole.zero_grad();
      whole.backward(whole.forward(inputs).square().mean());
      of_whole.step();
      sharded.zero_grad();
      EXPECT_FALSE(parts.module()->weight.grad().defined());
      parts.backward(parts.forward(inputs).square().mean());
      sharded.step();
      EXPECT_TRUE(at::equal(parts.module()->weight, whole.module()->weight)) << "step " << step;
    }
    EXPECT_TRUE(same_on_all_ranks(group, parts.module()->parameters()));
  });
}

// Autograd refuses to use a parameter that was changed after the forward pass.
TEST(ShardedOptimizer, AStepIsAChangeOfEveryParameter) {
  run_ranks(2, [&](int64_t /*rank*/, const auto& group) {
    std::vector<at::Tensor> weights;  // Each rank steps one of them.
    for (uint64_t i = 0; i < 2; ++i) weights.push_back(seeded_randn(i, {100, 100}).requires_grad_());
    torch::optim::SGD sgd(weights, torch::optim::SGDOptions(0.1));
    ShardedOptimizer sharded(sgd, group, ShardOptions().whole_parameters(true));
    const std::vector<at::Tensor> losses = {weights[0].square().sum(), weights[1].square().sum()};
    for (at::Tensor& weight : weights) weight.mutable_grad() = at::ones_like(weight);
    sharded.step();
    for (const at::Tensor& loss : losses) {
      EXPECT_THAT(error_message<c10::Error>([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
    }
  });
}

// LibTorch divides the elements of a tensor among its threads.
TEST(ShardedOptimizer, TakesTheSameStepsWithSeveralThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const at::Tensor start = seeded_randn(1, {200'003});
  const at::Tensor gradient = seeded_randn(2, {200'003});
  const auto trained = [&](const at::Tensor& parameter, const auto& wrap) {
    torch::optim::AdamW adamw({parameter}, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    wrap(adamw);
  };
  const at::Tensor alone = start.clone().requires_grad_();
  trained(alone, [&](torch::optim::AdamW& adamw) {
    alone.mutable_grad() = gradient;
    for (int64_t step = 0; step < 3; ++step) adamw.step();
  });
  run_ranks(3, [&](int64_t rank, const auto& group) {
    const at::Tensor parameter = start.clone().requires_grad_();
    trained(parameter, [&](torch::optim::AdamW& adamw) {
      ShardedOptimizer sharded(adamw, group);
      parameter.mutable_grad() = gradient;
      for (int64_t step = 0; step < 3; ++step) sharded.step();
      EXPECT_TRUE(at::equal(parameter, alone)) << "rank " << rank;
    });
  });
  at::set_num_threads(threads);
}

// An optimizer that is not elementwise: the step has the length of the parameter's norm.
class NormedSteps final : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const at::NoGradGuard no_grad;
    for (const auto& group : param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        EXPECT_EQ(parameter.sizes(), parameter.grad().sizes());
        parameter.sub_(0.1 * parameter.norm() / parameter.grad().norm() * parameter.grad());
      }
    }
    return {};
  }
};

TEST(ShardedOptimizer, WholeParametersAreSteppedAsTheyAre) {
  const OptimizerCase value = optimizer_case<NormedSteps>("NormedSteps", torch::optim::SGDOptions(0.1));
  const EqualTraining alone = trained_alone(value, kShardSteps);
  for (const ShardLayout& layout : layouts()) {
    run_ranks(layout.world_size, [&](int64_t rank, const auto& group) {
      EqualTraining training(value);
      ShardedOptimizer sharded(*training.optimizer, group, options_of(layout).whole_parameters(true));
      for (int64_t step = 1; step <= kShardSteps; ++step) {
        training.compute_gradients(step);
        sharded.step();
      }
      for (size_t i = 0; i < training.parameters.size(); ++i) {
        EXPECT_TRUE(at::equal(training.parameters[i], alone.parameters[i])) << "rank " << rank << ", parameter " << i;
      }
    });
  }
}

class OptimizerOfNoKind final : public torch::optim::Optimizer {
 public:
  explicit OptimizerOfNoKind(const std::vector<at::Tensor>& parameters)
      : Optimizer(parameters, std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
};

TEST(ShardedOptimizerErrors, TheStateOfAnUnknownOptimizerCannotBeSaved) {
  run_ranks(2, [&](int64_t /*rank*/, const auto& group) {
    OptimizerOfNoKind unknown({at::zeros({3}).requires_grad_()});
    ShardedOptimizer sharded(unknown, group, ShardOptions().whole_parameters(true));
    EXPECT_THAT(error_message<c10::ValueError>([&] { sharded.state({}); }), HasSubstr("can be saved only for Adam"));
  });
}

TEST(ShardedOptimizerErrors, WhatCannotBeShardedIsRefusedOnAllRanks) {
  run_ranks(2, [&](int64_t rank, const auto& group) {
    const auto refusal = [&](torch::optim::Optimizer& optimizer, const ShardOptions& options = {}) {
      return error_message<c10::ValueError>([&] { ShardedOptimizer(optimizer, group, options); });
    };
    const auto refused_parameter = [&](const at::Tensor& parameter) {
      torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1));
      return refusal(sgd);
    };
    const at::Tensor parameter = at::zeros({3}).requires_grad_();
    torch::optim::LBFGS lbfgs({parameter});
    EXPECT_THAT(refusal(lbfgs, ShardOptions().whole_parameters(true)), HasSubstr("LBFGS"));
    EXPECT_THAT(refused_parameter(at::zeros({3}, at::kDouble).requires_grad_()), HasSubstr("is Double"));
    EXPECT_THAT(refused_parameter(at::zeros({3})), HasSubstr("no parameter that requires a gradient"));
    EXPECT_THAT(refused_parameter(at::zeros({4, 4}).narrow(1, 0, 2).requires_grad_()), HasSubstr("has holes"));
    EXPECT_THAT(refused_parameter(at::zeros({3 + rank}).requires_grad_()),
                HasSubstr("parameter 0 differs between ranks: rank 0 has [3] with strides [1] in group 0, rank 1 has "
                          "[4] with strides [1] in group 0"));
    const at::Tensor square = at::zeros({3, 3});
    EXPECT_THAT(refused_parameter((rank == 0 ? square : square.t()).requires_grad_()),
                HasSubstr("[3, 3] with strides"));
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1).momentum(0.9));
    EXPECT_THAT(refusal(sgd, ShardOptions().node_size(1)), HasSubstr("every node has one rank"));
    EXPECT_THAT(refusal(sgd, ShardOptions().node_size(0)), HasSubstr("node_size: must be at least 1, but is 0"));
    EXPECT_THAT(refusal(sgd, ShardOptions().whole_parameters(rank == 0)), HasSubstr("whole_parameters differs"));
    parameter.mutable_grad() = at::ones({3});
    sgd.step();
    EXPECT_THAT(refusal(sgd), HasSubstr("already has a state"));
    EXPECT_THAT(error_message<c10::ValueError>([&] { ShardedOptimizer(sgd, {}); }), HasSubstr("must not be null"));
  });
  run_ranks(1, [&](int64_t /*rank*/, const auto& group) {
    torch::optim::SGD sgd({at::zeros({3}).requires_grad_()}, torch::optim::SGDOptions(0.1));
    EXPECT_THAT(error_message<c10::ValueError>([&] { ShardedOptimizer(sgd, group); }), HasSubstr("group of one rank"));
  });
}

// The rank that fails throws its error, and the others fail as well.
TEST(ShardedOptimizerErrors, AStepThatFailsOnOneRankFailsOnAllOfTheNode) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    const at::Tensor parameter = at::zeros({300}).requires_grad_();
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1));
    ShardedOptimizer sharded(sgd, group);
    parameter.mutable_grad() = rank == 1 ? at::ones({300}).to_sparse() : at::ones({300});
    if (rank == 1) {
      EXPECT_THAT(error_message<c10::ValueError>([&] { sharded.step(); }), HasSubstr("layout Sparse"));
    } else {
      // If rank 1 has given up before this rank begins, the node's memory refuses the exchange of any name.
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { sharded.step(); }),
                  AnyOf(HasSubstr("exchange of shards"), HasSubstr("rank 1 of this node cancelled an exchange")));
    }
  });
}

}  // namespace
}  // namespace narrowcast::testing
