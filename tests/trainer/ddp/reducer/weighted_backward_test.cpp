#include <narrowcast/ddp.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/grad_scaler.h>
#include <narrowcast/sharded_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;

constexpr double kFloat32Tolerance = 1e-6;  // of gradients of about 0.1, in sums of other orders

SmallNet same_net() {
  SmallNet net;
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const at::Tensor& parameter : net->parameters()) parameter.copy_(0.3 * seeded_randn(seed++, parameter.sizes()));
  return net;
}

// The samples of `pass`: rank r has r + 1 of them, the first of which follows those of the ranks before.
Sample samples_of(int64_t pass, int64_t first, int64_t count) {
  const uint64_t seed = static_cast<uint64_t>(100 * pass);
  return {seeded_randn(seed, {20, 8}).narrow(0, first, count), seeded_randn(seed + 1, {20, 4}).narrow(0, first, count)};
}

int64_t samples_before(int64_t rank) { return rank * (rank + 1) / 2; }

Sample samples_of_rank(int64_t pass, int64_t rank) { return samples_of(pass, samples_before(rank), rank + 1); }

double weight_of(int64_t rank, int64_t world_size) {
  return static_cast<double>(rank + 1) / static_cast<double>(samples_before(world_size));
}

// The gradients of the mean over the samples of all ranks, and over passes 0 to `passes` - 1.
std::vector<at::Tensor> gradients_of_one_process(int64_t world_size, int64_t passes) {
  SmallNet net = same_net();
  at::Tensor loss = at::zeros({});
  for (int64_t pass = 0; pass < passes; ++pass) {
    const Sample all = samples_of(pass, 0, samples_before(world_size));
    loss = loss + loss_of(net->forward(all.x), all) / static_cast<double>(passes);
  }
  return gradients_of(loss, net->parameters());
}

void expect_close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(actual[i].defined());
    EXPECT_LE((actual[i] - expected[i]).abs().max().item<double>(), tolerance);
  }
}

class WeightedBackwardTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(WeightedBackwardTest, GivesTheMeanOverTheSamplesOfAllRanks) {
  const int64_t world_size = GetParam();
  const auto expected = gradients_of_one_process(world_size, 1);
  for (const std::string hook : {"none", "allreduce"}) {
    run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
      DistributedDataParallel ddp(same_net(), group, DdpOptions().hook(hook));
      for (int repeat = 0; repeat < 2; ++repeat) {  // The second pass has rebuilt buckets.
        ddp.zero_grad();
        const Sample sample = samples_of_rank(0, rank);
        ddp.backward(loss_of(ddp.forward(sample.x), sample), weight_of(rank, world_size));
        expect_close(gradients_in(ddp.module()->parameters()), expected, kFloat32Tolerance);
      }
    });
  }
}

TEST_P(WeightedBackwardTest, AddsUpPassesInsideNoSync) {
  constexpr int64_t kPasses = 3;
  const int64_t world_size = GetParam();
  const auto expected = gradients_of_one_process(world_size, kPasses);
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(same_net(), group, DdpOptions().hook("allreduce"));
    const auto run = [&](int64_t pass) {
      const Sample sample = samples_of_rank(pass, rank);
      ddp.backward(loss_of(ddp.forward(sample.x), sample), weight_of(rank, world_size) / kPasses);
    };
    {
      const auto guard = ddp.no_sync();
      for (int64_t pass = 0; pass + 1 < kPasses; ++pass) run(pass);
    }
    run(kPasses - 1);
    expect_close(gradients_in(ddp.module()->parameters()), expected, kFloat32Tolerance);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, WeightedBackwardTest, ::testing::Values(1, 2, 3, 4));

// The gradients of one pass of this rank.
std::vector<at::Tensor> averaged_with(
    const ProcessGroupPtr& group, const std::string& hook,
    const std::function<void(DistributedDataParallel<SmallNet>&, const at::Tensor&)>& run) {
  DdpOptions options = DdpOptions().hook(hook);
  if (hook == "int8") options.wire({.node_size = 1});
  DistributedDataParallel ddp(same_net(), group, options);
  const Sample sample = sample_of(0, group->getRank());
  run(ddp, loss_of(ddp.forward(sample.x), sample));
  return gradients_in(ddp.module()->parameters());
}

TEST(WeightedBackward, EqualWeightsHaveTheBitsOfNoWeights) {
  for (const int64_t world_size : {1, 2, 4}) {
    run_ranks(world_size, [&](int64_t, const ProcessGroupPtr& group) {
      const auto plain = averaged_with(group, "int8", [](auto& ddp, const at::Tensor& loss) { ddp.backward(loss); });
      const auto weighted = averaged_with(group, "int8", [&](auto& ddp, const at::Tensor& loss) {
        ddp.backward(loss, 1.0 / static_cast<double>(world_size));
      });
      EXPECT_TRUE(bytes_of(plain) == bytes_of(weighted));
    });
  }
}

TEST(WeightedBackward, WeightsThatDoNotAddUpToOneMultiplyTheGradients) {
  run_ranks(2, [](int64_t, const ProcessGroupPtr& group) {
    const auto plain = averaged_with(group, "int8", [](auto& ddp, const at::Tensor& loss) { ddp.backward(loss); });
    auto doubled = averaged_with(group, "int8", [](auto& ddp, const at::Tensor& loss) { ddp.backward(loss, 1); });
    for (at::Tensor& gradient : doubled) gradient = gradient / 2;
    EXPECT_TRUE(bytes_of(plain) == bytes_of(doubled));
  });
}

TEST(WeightedBackward, ARankOfWeightZeroAddsNothing) {
  const Sample sample = sample_of(0, 0);
  SmallNet net = same_net();
  const auto expected = gradients_of(loss_of(net->forward(sample.x), sample), net->parameters());
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto actual = averaged_with(
        group, "allreduce", [&](auto& ddp, const at::Tensor& loss) { ddp.backward(loss, rank == 0 ? 1 : 0); });
    EXPECT_TRUE(bytes_of(actual) == bytes_of(expected));
  });
}

TEST(WeightedBackward, TakesAScaledLoss) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    const double weight = weight_of(rank, 2);
    const auto plain =
        averaged_with(group, "allreduce", [&](auto& ddp, const at::Tensor& loss) { ddp.backward(loss, weight); });
    const auto unscaled = averaged_with(group, "allreduce", [&](auto& ddp, const at::Tensor& loss) {
      GradScaler scaler(at::kCPU, {.init_scale = 1024});
      ddp.backward(scaler.scale(loss), weight);
      EXPECT_TRUE(scaler.unscale(ddp.module()->parameters()));
    });
    EXPECT_TRUE(bytes_of(plain) == bytes_of(unscaled));
  });
}

// The shards are rounded as without a sharded optimizer, so parameters have the same bits.
TEST(WeightedBackward, AveragesShards) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    const auto train = [&](bool is_sharded) {
      DistributedDataParallel ddp(same_net(), group,
                                  DdpOptions().hook("int8").wire(hooks::WireOptions{.node_size = 1}));
      torch::optim::AdamW adamw(ddp.module()->parameters(), 0.01);
      std::optional<ShardedOptimizer> sharded;
      if (is_sharded) {
        sharded.emplace(adamw, ddp.reducer(), ShardOptions().parameter_format(WireFormat::kFp32));
      }
      for (int64_t step = 0; step < 4; ++step) {
        ddp.zero_grad();
        const Sample sample = samples_of_rank(step, rank);
        ddp.backward(loss_of(ddp.forward(sample.x), sample), weight_of(rank, 2));
        is_sharded ? sharded->step() : void(adamw.step());
      }
      return bytes_of(ddp.module()->parameters());
    };
    EXPECT_TRUE(train(true) == train(false));
  });
}

TEST(WeightedBackward, AWrongWeightOfOneRankIsAnErrorOfAllBeforeAnythingIsSent) {
  for (const double wrong : {std::numeric_limits<double>::quiet_NaN(), -0.25, 1.5}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      DistributedDataParallel ddp(same_net(), group, DdpOptions().hook("int8"));
      const Sample sample = sample_of(0, rank);
      const at::Tensor loss = loss_of(ddp.forward(sample.x), sample);
      const std::string message = error_message<c10::ValueError>([&] { ddp.backward(loss, rank == 1 ? wrong : 0.5); });
      EXPECT_THAT(message,
                  ::testing::HasSubstr(c10::str("weight: must be this rank's share of the samples of all ranks, "
                                                "in 0..1, but is ",
                                                wrong, " on rank 1")));
      EXPECT_EQ(ddp.payload_bytes_sent(), 0);
    });
  }
}

}  // namespace
}  // namespace narrowcast
