// In a build without failpoints, points do nothing.
#include "trainer/base/process/failpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

namespace narrowcast {
namespace {

constexpr int kSurvived = 7;  // exit code

// Passes the point, and another one between, `times` times in a process that is killed at the pass of number `nth`.
void pass_often(int64_t times, int64_t nth) {
  kill_at(Failpoint::kFileSynced, nth);
  for (int64_t i = 0; i < times; ++i) {
    pass(Failpoint::kFileWritten);
    pass(Failpoint::kFileSynced);
  }
  _exit(kSurvived);
}

TEST(FailpointDeathTest, KillsTheProcessAtThePassOfItsNumberAlone) {
  EXPECT_EXIT(pass_often(2, 3), ::testing::ExitedWithCode(kSurvived), "");
  if (has_failpoints()) {
    EXPECT_EXIT(pass_often(3, 3), ::testing::KilledBySignal(SIGKILL), "");
    EXPECT_EXIT(pass_often(1, 1), ::testing::KilledBySignal(SIGKILL), "");
  } else {
    EXPECT_EXIT(pass_often(3, 3), ::testing::ExitedWithCode(kSurvived), "");
  }
}

TEST(FailpointDeathTest, NothingHappensWithoutAChoice) {
  const auto pass_all = [] {
    for (int point = 0; point <= static_cast<int>(kLastFailpoint); ++point) pass(static_cast<Failpoint>(point));
    _exit(kSurvived);
  };
  EXPECT_EXIT(pass_all(), ::testing::ExitedWithCode(kSurvived), "");
}

}  // namespace
}  // namespace narrowcast
