#include "tests/support/spawned_ranks.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

namespace narrowcast::testing {
namespace {

using ::testing::ElementsAre;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TEST(SpawnRanks, RunsAGroupOfProcessesWithVariablesOfTheirOwn) {
  const auto codes = spawn_ranks(
      3,
      [](int64_t rank, const Group& group) {
        EXPECT_EQ(std::getenv("NARROWCAST_SPAWN_TEST"), std::to_string(rank));
        std::vector<at::Tensor> sum{at::full({1}, rank + 1, at::kLong)};
        group->allreduce(sum)->wait();
        EXPECT_EQ(sum[0].item<int64_t>(), 6);
      },
      {},
      [](int64_t rank) {
        return std::map<std::string, std::string>{{"NARROWCAST_SPAWN_TEST", std::to_string(rank)}};
      });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankPassed, kRankPassed));
}

TEST(SpawnRanks, TellsHowEachRankEnded) {
  const auto codes = spawn_ranks(5, [](int64_t rank, const Group&) {
    if (rank == 1) throw std::runtime_error("as it should");
    if (rank == 2) ADD_FAILURE() << "as it should";
    if (rank == 3) ::_exit(42);
    if (rank == 4) ::raise(SIGKILL);
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankFailed, kRankFailed, 42, 128 + SIGKILL));
}

// A process that ends without having become a rank has not passed.
TEST(SpawnRanks, NoticesRanksThatDoNotCome) {
  if (std::getenv("NARROWCAST_TEST_RANK") != nullptr) return;  // This is the rank.
  EXPECT_THAT(spawn_ranks(1, [](int64_t, const Group&) {}), ElementsAre(kRankFailed));
}

}  // namespace
}  // namespace narrowcast::testing
