#include "ops/comm/groups/group.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using namespace std::chrono_literals;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TEST(MovesTensorsOn, AsksTheBackends) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    EXPECT_TRUE(moves_tensors_on(at::kCPU, group));
    EXPECT_FALSE(moves_tensors_on(at::kMeta, group));
  });
  const auto no_backend = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  EXPECT_FALSE(moves_tensors_on(at::kCPU, no_backend));
}

TEST(AllGatherRows, GivesTheRowsOfAllRanksByRank) {
  testing::run_ranks(3, [](int64_t rank, const Group& group) {
    const at::Tensor numbers =
        all_gather_rows(group, "call", at::tensor({rank, int64_t{1} << 62}, at::kLong), at::kCPU);
    EXPECT_TRUE(at::equal(numbers.select(1, 0), at::arange(3, at::kLong)));
    EXPECT_TRUE(numbers.select(1, 1).eq(int64_t{1} << 62).all().item<bool>());
    const at::Tensor bytes = all_gather_rows(group, "call", at::full({5}, rank, at::kByte), at::kCPU);
    EXPECT_EQ(bytes.sizes(), (at::IntArrayRef{3, 5}));
    EXPECT_TRUE(at::equal(bytes.select(1, 4), at::arange(3, at::kByte)));
  });
}

TEST(AllGatherRows, NamesTheRankAndTheCallIfAPeerDoesNotCome) {
  const auto body = [](int64_t rank, const Group& group) {
    if (rank == 0) {
      EXPECT_THAT(testing::error_message<c10::DistBackendError>(
                      [&] { all_gather_rows(group, "comparing sizes", at::zeros({1}, at::kLong), at::kCPU); }),
                  ::testing::StartsWith("rank 0: comparing sizes failed: "));
    }
  };
  testing::run_ranks(2, body, {.timeout = 200ms});
}

}  // namespace
}  // namespace narrowcast::collectives
