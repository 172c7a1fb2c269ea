#include "ops/collectives/all_reduce/array/element_range.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <tuple>
#include <vector>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

class Cut : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(Cut, CoversAllElementsOnceAtMultiplesOfTheGrain) {
  const auto [numel, parts] = GetParam();
  const auto ranges = cut(numel, parts);
  ASSERT_EQ(static_cast<int64_t>(ranges.size()), parts);
  int64_t next = 0;
  int64_t smallest = numel;
  int64_t largest = 0;
  for (const ElementRange& range : ranges) {
    EXPECT_EQ(range.begin, next);
    EXPECT_GE(range.numel, 0);
    EXPECT_TRUE(range.begin % cpu::kWireGrain == 0 || range.begin == numel);
    next = range.begin + range.numel;
    smallest = std::min(smallest, range.numel);
    largest = std::max(largest, range.numel);
  }
  EXPECT_EQ(next, numel);
  EXPECT_LT(largest - smallest, 2 * cpu::kWireGrain) << "as even as multiples of the grain are";
}

INSTANTIATE_TEST_SUITE_P(Ranges, Cut,
                         ::testing::Combine(::testing::Values(0, 1, 1023, 1024, 1025, 8192, 1'000'003),
                                            ::testing::Values(1, 2, 3, 4, 5, 8, 1000)));

TEST(ElementRange, CutsHugeArraysWithoutOverflow) {
  const int64_t numel = int64_t{1} << 62;
  const auto ranges = cut(numel, 7);
  EXPECT_EQ(ranges.back().begin + ranges.back().numel, numel);
  EXPECT_LT(ranges[0].numel - ranges[3].numel, 2 * cpu::kWireGrain);
}

TEST(ElementRange, CutsARangeWhereItLies) {
  EXPECT_EQ(cut(ElementRange{2048, 2000}, 2), (std::vector<ElementRange>{{2048, 1024}, {3072, 976}}));
}

TEST(RangeTest, CutsAtMultiplesOfAGrainThatMayExceedIt) {
  EXPECT_EQ(cut({100, 10}, 2, 4), (std::vector<ElementRange>{{100, 4}, {104, 6}}));
  EXPECT_EQ(cut({0, 10}, 3, 5), (std::vector<ElementRange>{{0, 0}, {0, 5}, {5, 5}}));
  EXPECT_EQ(cut({0, 10}, 2, std::numeric_limits<int64_t>::max()), (std::vector<ElementRange>{{0, 0}, {0, 10}}));
  EXPECT_EQ(cut({0, 0}, 1, 5), (std::vector<ElementRange>{{0, 0}}));
}

TEST(RangeTest, ArePartsOfThoseThatReachOver) {
  const std::vector<ElementRange> ranges{{0, 3}, {5, 10}, {20, 1}, {30, 5}};
  EXPECT_EQ(within(ranges, {2, 10}), (std::vector<ElementRange>{{0, 1}, {3, 7}}));
  EXPECT_EQ(within(ranges, {20, 15}), (std::vector<ElementRange>{{0, 1}, {10, 5}}));
  EXPECT_EQ(within(ranges, {15, 5}), std::vector<ElementRange>());
}

TEST(ExactElements, AreTakenOutAndPutBack) {
  const std::vector<ElementRange> ranges{{1, 2}, {9, 1}};
  for (ExactElements& exact : std::array{ExactElements(ranges), ExactElements(ranges, at::kCPU)}) {
    const at::Tensor array = at::arange(10, at::kDouble);
    exact.copy_from(array);
    EXPECT_EQ(array.sum().item<double>(), 45);
    EXPECT_EQ(exact.values()[2].item<float>(), 9);
    exact.take_from(array);
    EXPECT_TRUE(at::equal(exact.values(), at::tensor({1.0F, 2.0F, 9.0F})));
    EXPECT_EQ(array.sum().item<double>(), 45 - 12);
    exact.values().mul_(2);
    exact.put_back(array);
    EXPECT_EQ(array.sum().item<double>(), 45 + 12);
    EXPECT_EQ(array[9].item<double>(), 18);
  }
}

}  // namespace
}  // namespace narrowcast::collectives
