#include "trainer/train/bench/start_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/ranks.h"

namespace narrowcast::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The ranks are threads, so that their clocks are one.
TEST(StartLine, LetsAllRanksGoAtTheSameTimeAfterTheLast) {
  constexpr int64_t kRanks = 3;
  constexpr std::chrono::milliseconds kLate{100};
  std::vector<Clock::time_point> starts(kRanks);
  Clock::time_point last;
  testing::run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
    const StartLine line(group, /*least_round_trip=*/0);
    EXPECT_GT(line.round_trip(), 0);
    if (rank == 1) {
      std::this_thread::sleep_for(kLate);
      last = Clock::now();
    }
    line.wait("waiting");
    starts[static_cast<size_t>(rank)] = Clock::now();
  });
  const auto [first, latest] = std::ranges::minmax(starts);
  EXPECT_GT(first, last);
  EXPECT_LT(latest - first, kLate) << "a busy machine delays threads";
}

TEST(StartLine, IsABarrierOnShortLinks) {
  testing::run_ranks(2, [&](int64_t, const ProcessGroupPtr& group) {
    const StartLine line(group, /*least_round_trip=*/1000);
    const auto begin = Clock::now();
    line.wait("waiting");
    EXPECT_LT(Clock::now() - begin, testing::kPatience);
  });
}

}  // namespace
}  // namespace narrowcast::bench
