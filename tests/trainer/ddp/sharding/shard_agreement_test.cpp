#include "trainer/ddp/sharding/shard_agreement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::sharding {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;

TEST(ShardAgreement, AnErrorOrAnotherRequestOfOneRankIsAnErrorOnAll) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    const auto refusal = [&](const ShardRequest& of_rank_1) {
      const ShardRequest good = {.parameters = {at::zeros({9})}, .groups = {0}, .values = {{"the optimizer", "SGD"}}};
      return error_message<c10::ValueError>(
          [&] { agree_on_shards(group, [&] { return rank == 1 ? of_rank_1 : good; }); });
    };
    EXPECT_THAT(refusal({}), HasSubstr("ShardedOptimizer on rank 1: the optimizer has no parameter"));
    EXPECT_THAT(refusal({.options = ShardOptions().node_size(0)}),
                HasSubstr("ShardedOptimizer on rank 1: node_size: must be at least 1, but is 0"));
    EXPECT_THAT(refusal({.parameters = {at::zeros({9}, at::kDouble)}, .groups = {0}}),
                HasSubstr("ShardedOptimizer on rank 1: parameter 0 of the optimizer is Double"));
    EXPECT_THAT(refusal({.parameters = {at::zeros({9})}, .groups = {0}, .values = {{"the optimizer", "Adam"}}}),
                HasSubstr("the optimizer differs between ranks: rank 0 has SGD, rank 1 has Adam"));
    EXPECT_THAT(
        refusal({.parameters = {at::zeros({8})}, .groups = {0}, .values = {{"the optimizer", "SGD"}}}),
        HasSubstr("parameter 0 differs between ranks: rank 0 has [9] with strides [1] in group 0, rank 1 has [8]"));
  });
}

// With whole parameters the largest of them decides.
TEST(ShardAgreement, TheLargestShardIsThatOfTheSmallestNode) {
  const std::vector<at::Tensor> parameters = {at::zeros({640}), at::zeros({128})};
  EXPECT_EQ(largest_shard(parameters, node::NodeLayout::of_size(4, 4), ShardOptions()), 192);
  EXPECT_EQ(largest_shard(parameters, node::NodeLayout::of_size(6, 4), ShardOptions()), 384);
  EXPECT_EQ(largest_shard(parameters, node::NodeLayout::of_size(6, 4), ShardOptions().whole_parameters(true)), 640);
}

}  // namespace
}  // namespace narrowcast::sharding
