#include "ops/collectives/wire/run.h"

#include <gtest/gtest.h>

#include <tuple>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

class Cut : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(Cut, CoversAllElementsOnceAtMultiplesOfTheGrain) {
  const auto [numel, parts] = GetParam();
  const auto runs = cut(numel, parts);
  ASSERT_EQ(static_cast<int64_t>(runs.size()), parts);
  int64_t next = 0;
  int64_t smallest = numel;
  int64_t largest = 0;
  for (const collectives::Run& run : runs) {
    EXPECT_EQ(run.begin, next);
    EXPECT_GE(run.numel, 0);
    EXPECT_TRUE(run.begin % cpu::kWireGrain == 0 || run.begin == numel);
    next = run.begin + run.numel;
    smallest = std::min(smallest, run.numel);
    largest = std::max(largest, run.numel);
  }
  EXPECT_EQ(next, numel);
  EXPECT_LT(largest - smallest, 2 * cpu::kWireGrain) << "as even as multiples of the grain are";
}

INSTANTIATE_TEST_SUITE_P(Runs, Cut,
                         ::testing::Combine(::testing::Values(0, 1, 1023, 1024, 1025, 8192, 1'000'003),
                                            ::testing::Values(1, 2, 3, 4, 5, 8, 1000)));

TEST(Run, CutsHugeArraysWithoutOverflow) {
  const int64_t numel = int64_t{1} << 62;
  const auto runs = cut(numel, 7);
  EXPECT_EQ(runs.back().begin + runs.back().numel, numel);
  EXPECT_LT(runs[0].numel - runs[3].numel, 2 * cpu::kWireGrain);
}

TEST(Run, CutsARunWhereItLies) {
  EXPECT_EQ(cut(collectives::Run{2048, 2000}, 2), (std::vector<collectives::Run>{{2048, 1024}, {3072, 976}}));
}

}  // namespace
}  // namespace narrowcast::collectives
