// Ranks as processes. gtest runs suites named DeathTest before all others. These tests must run first, because autograd
// does not work in a child whose parent has used it.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::StartsWith;

class DdpProcessesDeathTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(DdpProcessesDeathTest, EveryModeAveragesGradients) {
  const auto body = [](int64_t rank, const ProcessGroupPtr& group) {
    for (const Mode& mode : all_modes()) {
      DistributedDataParallel ddp(SmallNet(), group, mode.options);
      SmallNet net = ddp.module();
      for (int64_t step = 0; step < 3; ++step) {
        const Sample sample = sample_of(step, rank);
        ddp.zero_grad();
        ddp.backward(loss_of(ddp.forward(sample.x), sample));
        std::vector<at::Tensor> by_rank;
        for (int64_t other = 0; other < group->getSize(); ++other) {
          const Sample theirs = sample_of(step, other);
          by_rank.push_back(gradients_of(loss_of(net->forward(theirs.x), theirs), {net->first->weight})[0]);
        }
        EXPECT_TRUE(is_mean_over_ranks(net->first->weight.grad(), by_rank)) << mode.name << ", step " << step;
      }
    }
  };
  EXPECT_THAT(fork_ranks(GetParam(), body), Each(kRankPassed));
}

TEST_P(DdpProcessesDeathTest, EveryHookKeepsReplicasTogether) {
  const auto body = [](int64_t rank, const ProcessGroupPtr& group) {
    for (const std::string& hook : hooks::comm_hook_names()) {
      if (hook == "noop") continue;
      DdpOptions options = DdpOptions().hook(hook).bucket_cap_mb(0.0005);
      if (hooks::power_sgd_rank_of(hook)) options.power_sgd({.start = 1});  // Else ten steps would compress nothing.
      DistributedDataParallel ddp(SmallNet(), group, options);
      for (int64_t step = 0; step < 10; ++step) {
        const Sample sample = sample_of(step, rank);
        ddp.zero_grad();
        ddp.backward(loss_of(ddp.forward(sample.x), sample));
        descend(ddp.module()->parameters(), 0.05);
      }
      EXPECT_TRUE(same_on_all_ranks(group, ddp.module()->parameters())) << hook;
    }
  };
  EXPECT_THAT(fork_ranks(GetParam(), body), Each(kRankPassed));
}

INSTANTIATE_TEST_SUITE_P(Worlds, DdpProcessesDeathTest, ::testing::Values(1, 2, 3, 4));

class DdpLostPeerDeathTest : public ::testing::TestWithParam<std::string> {};

// Rank 1 dies between the forward and the backward pass of the second step.
TEST_P(DdpLostPeerDeathTest, IsABackendErrorNamingARank) {
  const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, DdpOptions().hook(GetParam()));
    for (int64_t step = 0; step < 2; ++step) {
      const Sample sample = sample_of(step, rank);
      const at::Tensor loss = loss_of(ddp.forward(sample.x), sample);
      if (rank == 1 && step == 1) ::_exit(9);
      try {
        ddp.backward(loss);
        EXPECT_EQ(step, 0) << "nobody noticed that rank 1 died";
      } catch (const c10::DistBackendError& error) {
        EXPECT_EQ(step, 1) << error.what_without_backtrace();
        EXPECT_THAT(error.what_without_backtrace(), StartsWith("rank "));
      }
    }
  };
  EXPECT_THAT(fork_ranks(2, body), ElementsAre(kRankPassed, 9));
}

INSTANTIATE_TEST_SUITE_P(Hooks, DdpLostPeerDeathTest,
                         ::testing::Values("none", "allreduce", "quantize_per_tensor", "quantize_per_channel"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace narrowcast
