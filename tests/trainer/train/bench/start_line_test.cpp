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

constexpr std::chrono::milliseconds kLate{100};

// How far apart `ranks` start, after the last has come late. The ranks are threads, so that the test has one clock. The
// clocks of odd ranks are a quarter of an hour ahead.
Clock::duration spread_of_starts(int64_t ranks) {
  std::vector<Clock::time_point> starts(static_cast<size_t>(ranks));
  Clock::time_point last;
  testing::run_ranks(ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto clock = [=] {
      return std::chrono::duration<double>(Clock::now().time_since_epoch()).count() + (rank % 2 == 1 ? 900 : 0);
    };
    // With this margin a rank that misjudges the time of rank 0 starts much too early.
    const StartLine line(group, {.least_round_trip = 0, .margin = 0.3, .clock = clock});
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
  return latest - first;
}

TEST(StartLine, LetsAllRanksGoAtTheSameTimeAfterTheLastThoughTheirClocksDiffer) {
  for (const int64_t ranks : {2, 3, 5}) {
    auto least = spread_of_starts(ranks);
    for (int i = 0; i < 4 && least > kLate / 4; ++i) least = std::min(least, spread_of_starts(ranks));
    EXPECT_LT(least, kLate) << ranks << " ranks; a busy machine delays threads, but not always";
  }
}

TEST(StartLine, IsABarrierOnShortLinks) {
  testing::run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const StartLine line(group, {.least_round_trip = 1000, .margin = 1000});
    const auto begin = Clock::now();
    if (rank == 1) std::this_thread::sleep_for(kLate);
    line.wait("waiting");
    const auto waited = Clock::now() - begin;
    EXPECT_LT(waited, testing::kPatience);
    EXPECT_GE(waited, kLate / 2) << "for the last";
  });
}

}  // namespace
}  // namespace narrowcast::bench
