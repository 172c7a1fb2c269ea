// Muon on several ranks: sharded, as the inner optimizer of DiLoCo, and with equal replicas.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/muon.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/outer_fixtures.h"
#include "tests/trainer/ddp/sharding/over_all_fixtures.h"
#include "trainer/ddp/optimization/newton_schulz.h"

namespace narrowcast::testing {
namespace {

using optim::Muon;
using optim::MuonOptions;
using ::testing::HasSubstr;

OptimizerGroups muon_groups(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : parameters) (parameter.dim() == 2 ? matrices : others).push_back(parameter);
  OptimizerGroups groups;
  groups.emplace_back(matrices, std::make_unique<MuonOptions>(0.02));
  groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(0.01));
  return groups;
}

// A net with gradients that are averaged over the ranks, and Muon.
struct MuonTraining {
  explicit MuonTraining(const ProcessGroupPtr& group)
      : ddp(made_net(), group, DdpOptions().hook("int8")), muon(muon_groups(ddp.module()->parameters())) {}

  void compute_gradients(int64_t step) {
    for (at::Tensor parameter : parameters()) parameter.mutable_grad() = at::Tensor();
    const auto seed = static_cast<uint64_t>(100 * step + ddp.process_group()->getRank());
    ddp.backward(ddp.forward(seeded_randn(seed, {4, kNetWidth}), /*skips_last=*/false).square().mean());
  }
  std::vector<at::Tensor> parameters() const { return ddp.module()->parameters(); }
  std::vector<hooks::NamedParameter> named() const {
    std::vector<hooks::NamedParameter> named;
    for (const auto& parameter : ddp.module()->named_parameters()) {
      named.push_back({parameter.key(), parameter.value()});
    }
    return named;
  }

  DistributedDataParallel<ThreeLayers> ddp;
  Muon muon;
};

void expect_equal(const MuonTraining& a, const MuonTraining& b, const std::string& where) {
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(a.parameters()[i], b.parameters()[i])) << where << ", parameter " << i;
  }
}

constexpr int64_t kSteps = 3;

// Replicas have the bits of a training without shards, within nodes and over all ranks.
TEST(MuonOnRanks, ShardsAreWholeMatricesWithTheBitsOfNoShards) {
  for (const ShardLayout& layout : {ShardLayout{2}, ShardLayout{3}, ShardLayout{4, 2}, ShardLayout{4}}) {
    for (const bool over_all : {false, true}) {
      run_ranks(layout.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
        MuonTraining whole(group);
        MuonTraining parts(group);
        std::optional<ShardedOptimizer> sharded;
        ShardOptions options = ShardOptions().whole_parameters(true);
        if (over_all) {
          sharded.emplace(parts.muon, parts.ddp.reducer(), options.parameter_format(WireFormat::kFp32));
        } else {
          sharded.emplace(parts.muon, group, options.node_size(layout.node_size));
        }
        for (int64_t step = 1; step <= kSteps; ++step) {
          whole.compute_gradients(step);
          parts.compute_gradients(step);
          whole.muon.step();
          sharded->step();
        }
        expect_equal(whole, parts, over_all ? "over all" : "within nodes");
        EXPECT_TRUE(same_on_all_ranks(group, parts.parameters())) << "rank " << rank;
        for (const auto& of_group : parts.muon.param_groups()) {
          for (const at::Tensor& own : of_group.params()) {
            const bool is_whole = std::ranges::any_of(
                parts.parameters(), [&](const at::Tensor& parameter) { return parameter.is_same(own); });
            EXPECT_TRUE(is_whole);
          }
        }
      });
    }
  }
}

// Parameters are sent as differences, as with AdamW: replicas stay equal, and the masters are whole matrices.
TEST(MuonOnRanks, MastersAreWholeMatrices) {
  run_ranks(3, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    MuonTraining training(group);
    ShardedOptimizer sharded(training.muon, training.ddp.reducer(), ShardOptions().whole_parameters(true));
    for (int64_t step = 1; step <= kSteps; ++step) {
      training.compute_gradients(step);
      sharded.step();
    }
    EXPECT_TRUE(sharded.has_masters());
    EXPECT_TRUE(same_on_all_ranks(group, training.parameters()));
    EXPECT_GT(sharded.largest_difference(), 0);
    EXPECT_LT(sharded.largest_difference(), 1e-3);
  });
}

// A state is saved by one number of ranks and loaded by another, and by one rank without shards.
TEST(MuonOnRanks, AShardedStateGoesOnInOtherWorldsBitForBit) {
  hooks::HookState saved;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> expected;
  const auto gradients_of = [](const std::vector<at::Tensor>& of, int64_t step) {
    for (size_t i = 0; i < of.size(); ++i) {
      at::Tensor parameter = of[i];
      parameter.mutable_grad() = seeded_randn(static_cast<uint64_t>(100 * step) + i, parameter.sizes());
    }
  };
  const auto copies_of = [](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
    return copies;
  };
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    MuonTraining training(group);
    ShardedOptimizer sharded(training.muon, group, ShardOptions().whole_parameters(true));
    for (int64_t step = 1; step <= 4; ++step) {
      gradients_of(training.parameters(), step);
      sharded.step();
      if (step == 2) {
        const hooks::HookState state = sharded.state(training.named());
        if (rank == 0) {
          saved = deep_copy(state);
          parameters = copies_of(training.parameters());
        }
      }
    }
    if (rank == 0) expected = copies_of(training.parameters());
  });
  EXPECT_EQ(saved.count("first.weight.momentum_buffer"), 1);
  EXPECT_EQ(saved.count("first.weight.step"), 0);
  EXPECT_EQ(saved.count("first.bias.exp_avg"), 1);
  EXPECT_EQ(saved.at("first.bias.step").item<int64_t>(), 2);
  for (const int64_t world_size : {2, 3, 4}) {
    run_ranks(world_size, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
      MuonTraining training(group);
      ShardedOptimizer sharded(training.muon, group, ShardOptions().whole_parameters(true));
      sharded.load_state(saved, training.named());
      {
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < parameters.size(); ++i) training.parameters()[i].copy_(parameters[i]);
      }
      for (int64_t step = 3; step <= 4; ++step) {
        gradients_of(training.parameters(), step);
        sharded.step();
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(training.parameters()[i], expected[i])) << world_size << " ranks, parameter " << i;
      }
    });
  }
}

TEST(MuonOnRanks, CannotBeShardedByParts) {
  run_ranks(2, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    MuonTraining training(group);
    EXPECT_THAT(error_message<c10::ValueError>([&] { ShardedOptimizer(training.muon, group); }),
                HasSubstr("set ShardOptions::whole_parameters"));
  });
}

// One wide matrix costs as much as several with as many elements together. Shards by elements would be 2 : 1 in cost.
TEST(MuonOnRanks, ShardsHaveEqualCosts) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::vector<at::Tensor> matrices = {seeded_randn(1, {256, 256}).requires_grad_()};
    for (uint64_t i = 0; i < 4; ++i) matrices.push_back(seeded_randn(i + 2, {128, 192}).requires_grad_());
    Muon muon(matrices);
    const ShardedOptimizer sharded(muon, group, ShardOptions().whole_parameters(true));
    std::vector<double> costs;
    double cost = 0;
    for (const at::Tensor& own : muon.param_groups()[0].params()) {
      cost += static_cast<double>(200 * own.numel() + optim::orthogonalization_cost(own.sizes(), 5));
    }
    const double sum = all_reduce_sum(group, {cost})[0];
    EXPECT_LT(std::abs(cost / sum - 0.5), 0.1) << "rank " << rank;
  });
}

// Local steps are Muon's own, and every second step takes the mean of the ranks' parameters.
TEST(MuonOnRanks, TakesTheInnerStepsOfDiLoCo) {
  run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto make = [] {
      return std::vector<at::Tensor>{seeded_randn(1, {6, 9}).requires_grad_(), seeded_randn(2, {9, 4}).requires_grad_(),
                                     seeded_randn(3, {7}).requires_grad_()};
    };
    const std::vector<at::Tensor> parameters = make();
    const std::vector<at::Tensor> alone = make();
    Muon inner(muon_groups(parameters));
    Muon of_alone(muon_groups(alone));
    OuterOptimizer outer(inner, group, outer_options(2));
    for (int64_t step = 1; step <= 2; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        const auto seed = static_cast<uint64_t>(1000 * rank + 100 * step) + i;
        at::Tensor(parameters[i]).mutable_grad() = seeded_randn(seed, parameters[i].sizes());
        at::Tensor(alone[i]).mutable_grad() = seeded_randn(seed, alone[i].sizes());
      }
      outer.step();
      of_alone.step();
      EXPECT_EQ(at::equal(parameters[0], alone[0]), step == 1);
    }
    EXPECT_TRUE(same_on_all_ranks(group, parameters));
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::vector<at::Tensor> all = gathered(group, alone[i].detach().contiguous());
      const at::Tensor mean = (all[0] + all[1] + all[2]) / 3;
      EXPECT_LT((parameters[i] - mean).abs().max().item<double>(), 1e-5) << "parameter " << i;
    }
    EXPECT_FALSE(at::equal(parameters[0], alone[0])) << "rank " << rank << " has the mean, not its own";
  });
}

TEST(MuonOnRanks, ReplicasTakeEqualStepsInOneDtype) {
  run_ranks(2, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const std::vector<at::Tensor> parameters = {seeded_randn(1, {6, 9}).requires_grad_(), at::zeros({0, 3})};
    Muon muon(muon_groups(parameters));
    muon.make_replicas_equal(group);
    const auto& options = static_cast<const MuonOptions&>(muon.param_groups()[0].options());
    EXPECT_EQ(options.ns_dtype(), optim::native_ns_dtype(at::kCPU));
    EXPECT_EQ(optim::common_ns_dtype(group, at::kCPU), options.ns_dtype());
    EXPECT_TRUE(at::equal(parameters[0], seeded_randn(1, {6, 9}))) << "nothing is stepped";
    EXPECT_TRUE(muon.state().empty());
  });
}

// A rank whose processor computes otherwise, here because its options differ.
TEST(MuonOnRanks, StepsThatDifferAreAnError) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    Muon muon({seeded_randn(1, {6, 9}).requires_grad_()}, MuonOptions(0.1).eps(rank == 0 ? 1e-7 : 10));
    EXPECT_THAT(error_message<c10::ValueError>([&] { muon.make_replicas_equal(group); }),
                HasSubstr("Muon's step of a 6 x 9 matrix in"));
    muon.use_common_ns_dtype(group);  // The group is still usable.
  });
}

}  // namespace
}  // namespace narrowcast::testing
