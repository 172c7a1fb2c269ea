#include "ops/collectives/power_sgd/compression_plan.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace narrowcast::collectives {
namespace {

using ::testing::ElementsAre;

// Parameters of these sizes, one after the other.
std::vector<ShapedRange> ranges_of(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<ShapedRange> ranges;
  int64_t begin = 0;
  for (const auto& sizes : shapes) {
    const int64_t numel = c10::multiply_integers(sizes);
    ranges.push_back({{begin, numel}, sizes});
    begin += numel;
  }
  return ranges;
}

CompressionPlan plan_of(const std::vector<std::vector<int64_t>>& shapes, const CompressionOptions& options) {
  const auto ranges = ranges_of(shapes);
  return plan_by_layer(ranges.back().range.begin + ranges.back().range.numel, ranges, options);
}

TEST(PlanByLayer, CompressesWhatShrinksByMoreThanTheRate) {
  EXPECT_EQ(plan_of({{4, 4}}, {.rank = 1, .min_rate = 2}).batches.size(), 0) << "(4 + 4) * 2 is not less than 16";
  EXPECT_EQ(plan_of({{4, 4}}, {.rank = 1, .min_rate = 1.9}).batches.size(), 1);
  EXPECT_EQ(plan_of({{1000, 1}}, {.rank = 1, .min_rate = 1}).batches.size(), 0);
  const auto column = plan_of({{1000, 1}}, {.rank = 3, .min_rate = 0.4});
  EXPECT_EQ(column.batches.at(0).rank, 1) << "the rank of a column";
  EXPECT_EQ(column.p_numel + column.q_numel + column.plain_numel, 1001);
}

TEST(PlanByLayer, TakesAllDimensionsButTheFirstForColumns) {
  const auto plan = plan_of({{16, 8, 3, 3}}, {.rank = 4});
  EXPECT_EQ(plan.batches.at(0).rows, 16);
  EXPECT_EQ(plan.batches.at(0).columns, 72);
  EXPECT_EQ(plan.p_numel, 16 * 4);
  EXPECT_EQ(plan.q_numel, 72 * 4);
}

TEST(PlanByLayer, LeavesScalarsEmptyOnesAndWhatIsBetween) {
  std::vector<ShapedRange> ranges{{{0, 1}, {}}, {{1, 0}, {0, 5}}, {{3, 100}, {10, 10}}, {{103, 4}, {4}}};
  const auto plan = plan_by_layer(110, ranges, {});
  ASSERT_EQ(plan.batches.size(), 1);
  EXPECT_THAT(plan.batches[0].begins, ElementsAre(3));
  EXPECT_THAT(plan.plain, ElementsAre(ElementRange{0, 3}, ElementRange{103, 7}));
  EXPECT_EQ(plan.plain_numel, 10);
}

TEST(PlanByLayer, OrdersShapesByTheirFirstMember) {
  const std::vector<std::vector<int64_t>> shapes{{20, 30}, {30, 20}, {7}, {20, 30}};
  const auto together = plan_of(shapes, {.batch = true});
  ASSERT_EQ(together.batches.size(), 2);
  EXPECT_THAT(together.batches[0].begins, ElementsAre(0, 1207));
  EXPECT_THAT(together.batches[0].members, ElementsAre(0, 3));
  EXPECT_EQ(together.batches[1].p_begin, 2 * 20);
  EXPECT_EQ(together.batches[1].q_begin, 2 * 30);
  const auto apart = plan_of(shapes, {.batch = false});
  ASSERT_EQ(apart.batches.size(), 3);
  EXPECT_THAT(apart.batches[1].members, ElementsAre(3)) << "the order of random numbers is that of groups";
  EXPECT_EQ(apart.p_numel, together.p_numel);
  EXPECT_EQ(apart.batches[2].q_begin, together.batches[1].q_begin);
}

TEST(MatrixBatch, StacksSeveralMatricesOnly) {
  const auto plan = plan_of({{20, 30}, {20, 30}, {40, 20}}, {.batch = true});
  const at::Tensor array = at::randn({plan.numel});
  const at::Tensor stacked = plan.batches[0].matrices(array);
  EXPECT_TRUE(at::equal(stacked[1], array.narrow(0, 600, 600).view({20, 30})));
  EXPECT_FALSE(stacked.is_alias_of(array));
  EXPECT_TRUE(plan.batches[1].matrices(array).is_alias_of(array));
}

TEST(PlanOfSquare, PadsToTheNextSquare) {
  for (const auto& [numel, side] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 1}, {4, 2}, {5, 3}, {1000, 32}}) {
    const auto plan = plan_of_square(numel, 2);
    EXPECT_EQ(plan.array_numel, side * side) << numel;
    EXPECT_EQ(plan.p_numel + plan.q_numel + plan.plain_numel, 2 * side * std::min<int64_t>(side, 2)) << numel;
  }
}

}  // namespace
}  // namespace narrowcast::collectives
