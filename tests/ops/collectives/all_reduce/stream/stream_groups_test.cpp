#include "ops/collectives/all_reduce/stream/stream_groups.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/simulated_streams.h"

namespace narrowcast::collectives {
namespace {

using testing::SimulatedStreams;

// Encodes, sends and decodes a bucket on a stream.
void exchange(CollectiveOrder& order, const c10::Stream& stream, const std::string& bucket) {
  const c10::StreamGuard guard(stream);
  SimulatedStreams::enqueue("encode " + bucket);
  order.enqueue(testing::kSimulatedDevice, [&] { SimulatedStreams::enqueue("send " + bucket); });
  SimulatedStreams::enqueue("decode " + bucket);
}

TEST(CollectiveOrder, LetsCollectivesOfSeveralStreamsFollowEachOtherAndNothingElse) {
  SimulatedStreams::reset();
  const c10::impl::VirtualGuardImpl device(testing::kSimulated);
  const c10::Stream first = device.getStreamFromGlobalPool(testing::kSimulatedDevice, true);
  const c10::Stream second = device.getStreamFromGlobalPool(testing::kSimulatedDevice, true);
  CollectiveOrder order;
  exchange(order, first, "0");
  exchange(order, second, "1");
  exchange(order, first, "2");
  for (const auto& [earlier, later] : {std::pair("0", "1"), std::pair("1", "2")}) {
    const std::string send = std::string("send ") + earlier;
    EXPECT_TRUE(SimulatedStreams::precedes(send, std::string("send ") + later));
    EXPECT_FALSE(SimulatedStreams::precedes(send, std::string("encode ") + later));
    EXPECT_FALSE(SimulatedStreams::precedes(std::string("decode ") + earlier, std::string("decode ") + later));
  }
}

TEST(CollectiveOrder, IsThatOfCallsOnTheCpu) {
  CollectiveOrder order;
  int calls = 0;
  order.enqueue(at::kCPU, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace narrowcast::collectives
