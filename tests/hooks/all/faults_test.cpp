// Hooks when a rank dies.
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include <narrowcast/hooks.h>
#include "tests/hooks/all/bucket.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::fork_ranks;
using ::testing::HasSubstr;
using testing::kRankPassed;
using testing::wait_for_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

struct FaultCase {
  std::string hook;
  WireOptions wire = {};  // Without options all ranks are on one node, and no format is used.
};

class HookFaults : public ::testing::TestWithParam<FaultCase> {};

TEST_P(HookFaults, ADeadPeerFailsTheFutureLongBeforeTheTimeout) {
  const auto begin = std::chrono::steady_clock::now();
  const auto codes = fork_ranks(3, [](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook(GetParam().hook, {group, GetParam().wire});
    auto bucket = make_bucket(at::ones({100'000}));
    hook->runHook(bucket)->waitAndThrow();
    wait_for_ranks(group);
    if (rank == 1) ::_exit(42);
    try {
      hook->runHook(bucket)->waitAndThrow();
      ADD_FAILURE() << "the future has a value";
    } catch (const c10::DistBackendError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank " + std::to_string(rank)));
      // If rank 0 has given up before this rank begins, the node's memory refuses the exchange of any user.
      EXPECT_THAT(error.what_without_backtrace(),
                  AnyOf(HasSubstr(GetParam().hook), HasSubstr("an exchange in the node's memory")));
    }
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, 42, kRankPassed));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kPatience / 2) << "half of the group's timeout";
}

const WireOptions kBetweenNodes{.node_size = 1, .link_gbit = 10, .link_us = 50};

INSTANTIATE_TEST_SUITE_P(Hooks, HookFaults,
                         ::testing::Values(FaultCase{"allreduce"}, FaultCase{"fp16_compress"},
                                           FaultCase{"bf16_compress"}, FaultCase{"quantize_per_tensor"},
                                           FaultCase{"quantize_per_channel"}, FaultCase{"int8"},
                                           FaultCase{"int8", kBetweenNodes}, FaultCase{"int4", kBetweenNodes},
                                           FaultCase{"var5", kBetweenNodes}),
                         [](const auto& info) {
                           return info.param.hook + (info.param.wire == kBetweenNodes ? "_between_nodes" : "");
                         });

}  // namespace
}  // namespace narrowcast::hooks
