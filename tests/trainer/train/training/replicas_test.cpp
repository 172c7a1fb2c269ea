#include "trainer/train/training/replicas.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/ranks.h"

namespace narrowcast::training {
namespace {

using testing::run_ranks;

// The answer, which must be the same on all ranks.
bool answer(int64_t world_size, const std::function<std::vector<at::Tensor>(int64_t rank)>& tensors) {
  std::vector<int> answers(static_cast<size_t>(world_size));
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    answers[rank] = equal_on_all_ranks(group, tensors(rank)) ? 1 : 0;
  });
  for (const int each : answers) {
    EXPECT_EQ(each, answers[0]);
  }
  return answers[0] == 1;
}

class EqualOnAllRanksTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(EqualOnAllRanksTest, EqualTensorsAreEqual) {
  EXPECT_TRUE(answer(GetParam(), [](int64_t) -> std::vector<at::Tensor> {
    return {at::arange(100.0), at::zeros({0})};
  }));
}

TEST_P(EqualOnAllRanksTest, OneBitOfTheLastRankCounts) {
  const int64_t world_size = GetParam();
  const bool equal = answer(world_size, [&](int64_t rank) -> std::vector<at::Tensor> {
    // +0 and -0 compare equal, but their bits differ.
    return {at::full({3}, 1.0), at::full({1}, rank + 1 == world_size ? -0.0 : 0.0)};
  });
  EXPECT_EQ(equal, world_size == 1);
}

INSTANTIATE_TEST_SUITE_P(Worlds, EqualOnAllRanksTest, ::testing::Values(1, 2, 3, 4));

TEST(EqualOnAllRanks, OrderOfTheTensorsCounts) {
  EXPECT_FALSE(answer(2, [](int64_t rank) -> std::vector<at::Tensor> {
    const at::Tensor ones = at::full({2}, 1.0);
    const at::Tensor twos = at::full({2}, 2.0);
    return rank == 0 ? std::vector<at::Tensor>{ones, twos} : std::vector<at::Tensor>{twos, ones};
  }));
}

TEST(EqualOnAllRanks, ReadsStridedTensorsByTheirValues) {
  EXPECT_TRUE(answer(2, [](int64_t rank) -> std::vector<at::Tensor> {
    const at::Tensor values = at::arange(6.0).view({2, 3});
    return {rank == 0 ? values.t() : values.t().contiguous()};
  }));
}

}  // namespace
}  // namespace narrowcast::training
