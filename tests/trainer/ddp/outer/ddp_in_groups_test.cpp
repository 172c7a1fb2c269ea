// Post-local SGD and groups of ranks: DistributedDataParallel in a group, an OuterOptimizer over all ranks.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/outer_optimizer.h>
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/outer_fixtures.h"

namespace narrowcast::testing {
namespace {

constexpr int64_t kRanks = 4;
constexpr int64_t kStart = 3;
constexpr int64_t kEvery = 4;
constexpr int64_t kSteps = 11;  // Two outer steps after the start.

DdpOptions local_ddp(int64_t group_size) {
  return DdpOptions().hook("post_local_sgd").local({.start = kStart, .group_size = group_size});
}

// All ranks are equal in the warm-up and after an outer step; else the ranks of a group are equal.
TEST(PostLocalSgd, GroupsStayEqualAndAllRanksMeet) {
  for (const int64_t group_size : {1, 2, 4}) {
    run_ranks(kRanks, [&](int64_t rank, const auto& group) {
      SmallNet net;
      DistributedDataParallel<SmallNet> ddp(net, group, local_ddp(group_size));
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      OuterOptimizer outer(sgd, group, OuterOptions().sync_every(kEvery).warmup_steps(kStart).wire(outer_wire()));
      for (int64_t step = 1; step <= kSteps; ++step) {
        EXPECT_EQ(outer.is_warming_up(), ddp.keeps_replicas_equal()) << "both count alike";
        const Sample sample = sample_of(step, rank);
        ddp.zero_grad();
        ddp.backward(loss_of(ddp.forward(sample.x), sample));
        outer.step();
        const auto hashes = all_gather_text(group, bytes_of(net->parameters()));
        const bool all_meet = step <= kStart || (step - kStart) % kEvery == 0;
        EXPECT_EQ(outer.replicas_are_equal(), all_meet) << "step " << step;
        for (int64_t other = 0; other < kRanks; ++other) {
          const bool same = hashes[static_cast<size_t>(other)] == hashes[static_cast<size_t>(rank)];
          EXPECT_EQ(same, all_meet || other / group_size == rank / group_size) << "step " << step;
        }
      }
    });
  }
}

// The steps of the warm-up equal those of DistributedDataParallel with the inner hook.
TEST(PostLocalSgd, BeginsAsDistributedDataParallel) {
  run_ranks(2, [&](int64_t rank, const auto& group) {
    SmallNet plain;
    SmallNet local;
    DistributedDataParallel<SmallNet> plain_ddp(plain, group, DdpOptions().hook("allreduce"));
    DistributedDataParallel<SmallNet> local_ddp_module(local, group, local_ddp(1));
    for (size_t i = 0; i < local->parameters().size(); ++i) {
      local->parameters()[i].detach().copy_(plain->parameters()[i].detach());
    }
    for (int64_t step = 0; step <= kStart; ++step) {
      const Sample sample = sample_of(step, rank);
      for (auto* const ddp : {&plain_ddp, &local_ddp_module}) {
        ddp->zero_grad();
        ddp->backward(loss_of(ddp->forward(sample.x), sample));
      }
      const bool equal = bytes_of(gradients_in(plain->parameters())) == bytes_of(gradients_in(local->parameters()));
      EXPECT_EQ(equal, step < kStart);
    }
  });
}

// Rank 0's running means go to all ranks in the warm-up only.
TEST(PostLocalSgd, BuffersAreARanksOwnAfterTheStart) {
  run_ranks(2, [&](int64_t rank, const auto& group) {
    torch::nn::BatchNorm1d net(8);
    DistributedDataParallel<torch::nn::BatchNorm1d> ddp(net, group, local_ddp(1));
    for (int64_t step = 0; step < kStart + 3; ++step) {
      const Sample sample = sample_of(step, rank);
      const at::Tensor output = ddp.forward(sample.x);
      // The buffers of the previous step were broadcast before this step's own data changed them.
      const auto before = gathered(group, net->running_mean - sample.x.mean(0) * 0.1);
      EXPECT_EQ(at::allclose(before[0], before[1], 0, 1e-6), step <= kStart) << "step " << step;
      ddp.backward(output.sum());
      ddp.zero_grad();
    }
  });
}

// The first forward after the warm-up would broadcast the buffers, except in a training that resumes there.
TEST(PostLocalSgd, SettlingBroadcastsTheBuffersOfTheWarmUpsLastStep) {
  run_ranks(2, [&](int64_t rank, const auto& group) {
    torch::nn::BatchNorm1d net(8);
    DistributedDataParallel<torch::nn::BatchNorm1d> ddp(net, group, local_ddp(1));
    for (int64_t step = 0; step < kStart; ++step) {
      ddp.backward(ddp.forward(sample_of(step, rank).x).sum());
    }
    ASSERT_FALSE(ddp.keeps_replicas_equal());
    EXPECT_FALSE(same_on_all_ranks(group, net->buffers()));
    EXPECT_TRUE(ddp.settle_buckets());
    EXPECT_TRUE(same_on_all_ranks(group, net->buffers()));
    const at::Tensor before = net->running_mean.clone();
    const Sample sample = sample_of(kStart, rank);
    ddp.forward(sample.x);
    EXPECT_TRUE(at::allclose(net->running_mean, before * 0.9 + sample.x.mean(0) * 0.1, 0, 1e-6));
  });
}

}  // namespace
}  // namespace narrowcast::testing
