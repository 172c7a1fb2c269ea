#include "ops/comm/connections/meeting/reports.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/breakable_group.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::connections {
namespace {

using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// An action that waits until it is stopped.
struct Stoppable {
  std::promise<void> stopped;
  std::future<void> is_stopped = stopped.get_future();
  int stops = 0;

  void act() {
    is_stopped.get();
    throw std::runtime_error("stopped");
  }
  void stop() {
    if (stops++ == 0) stopped.set_value();
  }
};

TEST(ActTogether, ReturnsOnceAllRanksHaveSucceeded) {
  run_ranks(5, [](int64_t rank, const Group& group) {
    for (int i = 0; i < 3; ++i) {
      bool has_acted = false;
      act_together(
          group, "acting", [&] { has_acted = true; }, [] { FAIL(); });
      EXPECT_TRUE(has_acted) << rank;
    }
  });
}

TEST(ActTogether, TellsAFailureToRanksThatWouldWait) {
  run_ranks(5, [](int64_t rank, const Group& group) {
    for (const int64_t failing : {0, 2, 4}) {
      Stoppable waiting;
      const auto act = [&] {
        if (rank == failing) throw std::runtime_error("no \x1b[ room");
        if (rank != 1) waiting.act();
      };
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(
          testing::error_message<c10::DistBackendError>(
              [&] { act_together(group, "acting", act, [&] { waiting.stop(); }); }),
          "rank " + std::to_string(rank) + ": acting failed: rank " + std::to_string(failing) + ": no \\x1b[ room");
      EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kPatience / 2);
    }
    act_together(
        group, "acting", [] {}, [] {});
  });
}

// The rank depends on the time. Each rank has first noticed another failure, at the latest its own.
TEST(ActTogether, NamesTheSameRankOnAllIfSeveralFail) {
  constexpr int64_t kRanks = 4;
  std::vector<std::string> reasons(kRanks);
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const std::string error = testing::error_message<c10::DistBackendError>([&] {
      act_together(
          group, "acting", [&] { throw std::runtime_error("no room for " + std::to_string(rank)); }, [] {});
    });
    const std::string begin = "rank " + std::to_string(rank) + ": acting failed: ";
    ASSERT_THAT(error, ::testing::StartsWith(begin));
    reasons.at(static_cast<size_t>(rank)) = error.substr(begin.size());
  });
  EXPECT_THAT(reasons[0], ::testing::MatchesRegex("rank [0-3]: no room for [0-3]"));
  EXPECT_EQ(reasons[0][5], reasons[0].back());
  EXPECT_THAT(reasons, ::testing::Each(reasons[0]));
}

TEST(ActTogether, NamesARankThatEnds) {
  const auto run = [] {
    run_ranks(3, [](int64_t rank, const Group& group) {
      if (rank == 1) throw testing::Death();
      Stoppable waiting;
      EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] {
                    act_together(
                        group, "acting", [&] { waiting.act(); }, [&] { waiting.stop(); });
                  }),
                  ::testing::HasSubstr("acting failed: rank 1: "));
    });
  };
  EXPECT_THROW(run(), testing::Death);
}

}  // namespace
}  // namespace narrowcast::connections
