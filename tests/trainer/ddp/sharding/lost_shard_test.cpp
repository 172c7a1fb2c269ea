// A rank that dies before it has given its shard. The suite forks, so it must run before autograd is used.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LostShardDeathTest, TheOtherRanksOfTheNodeFail) {
  constexpr int kDies = 7;
  const auto body = [](int64_t rank, const ProcessGroupPtr& group) {
    EqualTraining training(optimizer_cases()[0]);
    ShardedOptimizer sharded(*training.optimizer, group, {});
    training.compute_gradients(1);
    sharded.step();
    if (rank == 1) ::_exit(kDies);
    training.compute_gradients(2);
    // If the other rank has given up before this rank begins, the node's memory refuses the exchange.
    EXPECT_THAT(error_message<c10::DistBackendError>([&] { sharded.step(); }),
                AnyOf(HasSubstr("exchange of shards: waiting for rank 1 on the same node failed"),
                      HasSubstr("of this node cancelled an exchange")));
  };
  EXPECT_THAT(fork_ranks(3, body), ElementsAre(kRankPassed, kDies, kRankPassed));
}

}  // namespace
}  // namespace narrowcast::testing
