#include "ops/collectives/wire/run.h"

#include <gtest/gtest.h>

#include <tuple>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

class Cut : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(Cut, CoversAllElementsOnceAtMultiplesOfTheGrain) {
  const auto [numel, parts] = GetParam();
  const auto segments = cut(numel, parts);
  ASSERT_EQ(static_cast<int64_t>(segments.size()), parts);
  int64_t next = 0;
  int64_t smallest = numel;
  int64_t largest = 0;
  for (const collectives::Segment& segment : segments) {
    EXPECT_EQ(segment.begin, next);
    EXPECT_GE(segment.numel, 0);
    EXPECT_TRUE(segment.begin % cpu::kWireGrain == 0 || segment.begin == numel);
    next = segment.begin + segment.numel;
    smallest = std::min(smallest, segment.numel);
    largest = std::max(largest, segment.numel);
  }
  EXPECT_EQ(next, numel);
  EXPECT_LT(largest - smallest, 2 * cpu::kWireGrain) << "as even as multiples of the grain are";
}

INSTANTIATE_TEST_SUITE_P(Runs, Cut,
                         ::testing::Combine(::testing::Values(0, 1, 1023, 1024, 1025, 8192, 1'000'003),
                                            ::testing::Values(1, 2, 3, 4, 5, 8, 1000)));

TEST(Segment, CutsHugeArraysWithoutOverflow) {
  const int64_t numel = int64_t{1} << 62;
  const auto segments = cut(numel, 7);
  EXPECT_EQ(segments.back().begin + segments.back().numel, numel);
  EXPECT_LT(segments[0].numel - segments[3].numel, 2 * cpu::kWireGrain);
}

TEST(Segment, CutsARunWhereItLies) {
  EXPECT_EQ(cut(collectives::Segment{2048, 2000}, 2), (std::vector<collectives::Segment>{{2048, 1024}, {3072, 976}}));
}

}  // namespace
}  // namespace narrowcast::collectives
