#include "ops/common/device_laps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_streams.h"

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::SimulatedStreams;

TEST(DeviceLaps, AreByTheClockOnTheCpu) {
  DeviceLaps laps(at::kCPU);
  const auto begin = std::chrono::steady_clock::now();
  laps.mark();
  laps.mark();
  laps.mark();
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  const std::vector<double> seconds = laps.take();
  ASSERT_EQ(seconds.size(), 2U);
  EXPECT_GE(seconds[0], 0);
  EXPECT_GE(seconds[1], 0);
  EXPECT_LE(seconds[0] + seconds[1], all.count());
}

// Simulated work takes a millisecond.
TEST(DeviceLaps, AreByWhatTheCurrentStreamHasElsewhere) {
  SimulatedStreams::reset();
  DeviceLaps laps(testing::kSimulatedDevice);
  SimulatedStreams::enqueue("before");
  laps.mark();
  SimulatedStreams::enqueue("first");
  SimulatedStreams::enqueue("second");
  laps.mark();
  {
    const c10::impl::VirtualGuardImpl device(testing::kSimulated);
    const c10::StreamGuard on_other(device.getStreamFromGlobalPool(testing::kSimulatedDevice, true));
    SimulatedStreams::enqueue("elsewhere");
  }
  SimulatedStreams::enqueue("third");
  laps.mark();
  EXPECT_THAT(laps.take(), ElementsAre(2e-3, 1e-3));
  EXPECT_THAT(laps.take(), IsEmpty()) << "they are forgotten";
}

}  // namespace
}  // namespace narrowcast
