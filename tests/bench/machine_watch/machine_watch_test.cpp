#include "tests/bench/machine_watch/machine_watch.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace narrowcast::bench {
namespace {

// Ten seconds on two processors: this program used one and a half, other processes none.
constexpr ProcessorUse kQuiet = {.usable = 2, .elapsed = 1000, .processes = 1500, .own = 1500, .idle = 500};

TEST(Disturbance, ThereIsNoneOnAQuietMachine) {
  EXPECT_EQ(disturbance_of(kQuiet), "");
  EXPECT_EQ(disturbance_of({}), "") << "nothing is known";
}

// At their limits, disturbances are not yet reported.
TEST(Disturbance, OthersMayTakeATwentieth) {
  ProcessorUse use = kQuiet;
  use.processes = 1600;
  use.idle = 400;
  EXPECT_EQ(disturbance_of(use), "");
  use.processes = 1620;
  use.idle = 380;
  EXPECT_EQ(disturbance_of(use), "other processes took 6% of the processors");
}

TEST(Disturbance, TheHostMayTakeAFiftieth) {
  ProcessorUse use = kQuiet;
  use.host = 40;
  use.idle = 460;
  EXPECT_EQ(disturbance_of(use), "");
  use.host = 60;
  use.idle = 440;
  EXPECT_EQ(disturbance_of(use), "the host took 3% of the processors");
}

// The share is relative to the processors that the program may use, however many others the machine has.
TEST(Disturbance, AQuotaMayTakeAFiftieth) {
  ProcessorUse use = kQuiet;
  use.idle = 100000;
  use.throttled = 40;
  EXPECT_EQ(disturbance_of(use), "");
  use.throttled = 200;
  EXPECT_EQ(disturbance_of(use), "a quota kept this program waiting for 10% of its time");
}

TEST(Disturbance, OneProcessorIsTooFew) {
  ProcessorUse use = kQuiet;
  use.usable = 1;
  EXPECT_EQ(disturbance_of(use), "this program may use 1 processor");
}

TEST(ThrottledSeconds, AreReadInBothVersions) {
  const auto read = [](const std::string& text) {
    std::istringstream file(text);
    return throttled_seconds(file);
  };
  EXPECT_DOUBLE_EQ(read("usage_usec 7\nnr_periods 4\nnr_throttled 2\nthrottled_usec 2500000\nnr_bursts 0\n"), 2.5);
  EXPECT_DOUBLE_EQ(read("nr_periods 4\nnr_throttled 2\nthrottled_time 1500000000\n"), 1.5);
  EXPECT_EQ(read("usage_usec 7\n"), 0);
  EXPECT_EQ(read(""), 0);
}

TEST(ExitCode, MissedTargetsFailOnAQuietMachineAlone) {
  EXPECT_EQ(exit_code(true, ""), 0);
  EXPECT_EQ(exit_code(false, ""), 1);
  EXPECT_EQ(exit_code(true, "other processes took 31% of the processors"), 0);
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(exit_code(false, "other processes took 31% of the processors"), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "NOT JUDGED: other processes took 31% of the processors, and targets are for a quiet machine of at least 2 "
            "processors.\n");
}

}  // namespace
}  // namespace narrowcast::bench
