#include "tests/support/ranks.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

namespace narrowcast::testing {
namespace {

using ::testing::ElementsAre;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The sum of rank + 1 over the ranks, computed by an all-reduce.
int64_t all_reduced_rank_sum(int64_t rank, const Group& group) {
  std::vector<at::Tensor> tensors{at::full({1}, rank + 1, at::kLong)};
  group->allreduce(tensors)->wait();
  return tensors[0].item<int64_t>();
}

class RunRanks : public ::testing::TestWithParam<int64_t> {};

TEST_P(RunRanks, GivesEveryRankOneGroup) {
  const int64_t world_size = GetParam();
  std::vector<int64_t> sums(world_size);
  run_ranks(world_size, [&](int64_t rank, const Group& group) {
    EXPECT_EQ(group->getRank(), rank);
    EXPECT_EQ(group->getSize(), world_size);
    sums[rank] = all_reduced_rank_sum(rank, group);
  });
  EXPECT_THAT(sums, ::testing::Each(world_size * (world_size + 1) / 2));
}

INSTANTIATE_TEST_SUITE_P(Worlds, RunRanks, ::testing::Values(1, 2, 3, 4, 5, 8));

TEST(RunRanksErrors, RethrowsTheFirstExceptionWhileOthersWait) {
  const auto body = [](int64_t rank, const Group& group) {
    if (rank == 1) throw std::logic_error("rank 1 gives up");
    all_reduced_rank_sum(rank, group);
  };
  EXPECT_THROW(run_ranks(3, body), std::logic_error);
}

TEST(ForkRanks, ReturnsEveryExitCode) {
  const auto codes = fork_ranks(4, [](int64_t rank, const Group& group) {
    EXPECT_EQ(all_reduced_rank_sum(rank, group), 10);
    if (rank == 1) throw std::logic_error("rank 1 fails on purpose");
    if (rank == 2) ::_exit(7);
    if (rank == 3) ::raise(SIGKILL);
  });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankFailed, 7, 128 + SIGKILL));
}

TEST(ForkRanks, AFailedExpectationFailsTheRank) {
  const auto codes = fork_ranks(2, [](int64_t rank, const Group&) { EXPECT_EQ(rank, 0) << "on purpose"; });
  EXPECT_THAT(codes, ElementsAre(kRankPassed, kRankFailed));
}

}  // namespace
}  // namespace narrowcast::testing
