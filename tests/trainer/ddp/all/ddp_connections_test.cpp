// Trainings over several connections: they have the bits of trainings over the group's own connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/outer_optimizer.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/comm/engine/engine.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::over_connections {
namespace {

using namespace testing;

constexpr int64_t kSteps = 6;
constexpr double kRate = 0.05;

// Trains on one rank, and returns its parameters.
struct Training {
  std::string name;
  int64_t ranks;
  int64_t node_size;
  std::function<std::vector<at::Tensor>(int64_t rank, const ProcessGroupPtr& group, const hooks::WireOptions& wire)>
      run;
};

SmallNet make_net() {
  SmallNet net;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = net->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(seeded_randn(i, parameters[i].sizes()));
  return net;
}

std::vector<at::Tensor> train(int64_t rank, const ProcessGroupPtr& group, const hooks::WireOptions& wire) {
  DistributedDataParallel ddp(make_net(), group, DdpOptions().hook("int8").wire(wire).bucket_cap_mb(0.0005));
  for (int64_t step = 0; step < kSteps; ++step) {
    const Sample sample = sample_of(step, rank);
    ddp.zero_grad();
    ddp.backward(loss_of(ddp.forward(sample.x), sample));
    descend(ddp.module()->parameters(), kRate);
  }
  return ddp.module()->parameters();
}

std::vector<at::Tensor> train_sharded(int64_t rank, const ProcessGroupPtr& group, const hooks::WireOptions& wire) {
  DistributedDataParallel ddp(make_net(), group, DdpOptions().hook("int8").wire(wire).bucket_cap_mb(0.0005));
  torch::optim::AdamW adamw(ddp.module()->parameters(), torch::optim::AdamWOptions(kRate));
  ShardedOptimizer sharded(adamw, ddp.reducer());
  for (int64_t step = 0; step < kSteps; ++step) {
    const Sample sample = sample_of(step, rank);
    sharded.zero_grad();
    ddp.backward(loss_of(ddp.forward(sample.x), sample));
    sharded.step();
  }
  return ddp.module()->parameters();
}

// Streaming DiLoCo: fragments whose exchanges overlap steps.
std::vector<at::Tensor> train_locally(int64_t rank, const ProcessGroupPtr& group, const hooks::WireOptions& wire) {
  SmallNet net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate));
  hooks::WireOptions outer_wire = wire;
  outer_wire.format = WireFormat::kInt4B32;
  outer_wire.error_feedback = true;
  OuterOptimizer outer(sgd, group,
                       OuterOptions()
                           .sync_every(4)
                           .optimizer(OuterKind::kNesterov)
                           .learning_rate(0.4)
                           .momentum(0.9)
                           .fragments(2)
                           .overlap_steps(1)
                           .mix(0.5)
                           .wire(outer_wire));
  for (int64_t step = 0; step < 4 * kSteps; ++step) {
    const Sample sample = sample_of(step, rank);
    sgd.zero_grad();
    loss_of(net->forward(sample.x), sample).backward();
    outer.step();
  }
  return net->parameters();
}

class TrainingsOverConnections : public ::testing::TestWithParam<Training> {};

TEST_P(TrainingsOverConnections, HaveTheSameBits) {
  const Training& training = GetParam();
  std::vector<std::vector<at::Tensor>> expected(static_cast<size_t>(training.ranks));
  for (const std::optional<int64_t> connections :
       {std::optional<int64_t>(), std::optional<int64_t>(1), std::optional<int64_t>(3), std::optional<int64_t>(16),
        std::optional<int64_t>(hooks::kAutoConnections)}) {
    run_ranks(training.ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
      const std::vector<at::Tensor> trained = training.run(
          rank, group, {.node_size = training.node_size, .link_gbit = 10, .link_us = 50, .connections = connections});
      if (connections != hooks::kAutoConnections) {
        EXPECT_EQ(engine::Engine::for_group(group)->carrier().connections, connections.value_or(1));
      }
      std::vector<at::Tensor>& of_rank = expected[static_cast<size_t>(rank)];
      if (of_rank.empty()) of_rank = trained;
      ASSERT_EQ(of_rank.size(), trained.size());
      for (size_t i = 0; i < trained.size(); ++i) {
        EXPECT_TRUE(at::equal(trained[i], of_rank[i])) << connections.value_or(0) << " connections, parameter " << i;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainingsOverConnections,
                         ::testing::Values(Training{"one_level", 3, 1, train}, Training{"two_levels", 4, 2, train},
                                           Training{"nodes_of_two_and_one", 5, 2, train},
                                           Training{"sharded", 3, 1, train_sharded},
                                           Training{"sharded_in_two_levels", 4, 2, train_sharded},
                                           Training{"diloco", 3, 1, train_locally},
                                           Training{"diloco_in_two_levels", 4, 2, train_locally}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast::over_connections
