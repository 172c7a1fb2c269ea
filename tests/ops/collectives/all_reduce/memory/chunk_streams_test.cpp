#include "ops/collectives/all_reduce/memory/chunk_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "ops/collectives/all_reduce/stream/stream_groups.h"
#include "tests/support/simulated_streams.h"

namespace narrowcast::collectives {
namespace {

using testing::SimulatedStreams;

std::string named(const std::string& work, int64_t chunk) { return work + " " + std::to_string(chunk); }

// Enqueues an exchange in two hops, like two shots, on a device that computes nothing.
class TwoHops {
 public:
  explicit TwoHops(int64_t chunks) {
    SimulatedStreams::reset();
    SimulatedStreams::enqueue("before");
    streams_.run(testing::kSimulatedDevice, chunks,
                 {[&](int64_t chunk) { hop("encode", "parts", chunk); },
                  [&](int64_t chunk) {
                    hop("average", "means", chunk);
                    SimulatedStreams::enqueue(named("decode", chunk));
                  }});
    SimulatedStreams::enqueue("after");
  }

  const std::vector<std::string>& collectives() const { return collectives_; }

 private:
  void hop(const std::string& kernel, const std::string& collective, int64_t chunk) {
    SimulatedStreams::enqueue(named(kernel, chunk));
    order_.enqueue(testing::kSimulatedDevice, [&] { SimulatedStreams::enqueue(named(collective, chunk)); });
    collectives_.push_back(named(collective, chunk));
  }

  ChunkStreams streams_;
  CollectiveOrder order_;
  std::vector<std::string> collectives_;
};

bool precedes(const std::string& earlier, const std::string& later) {
  return SimulatedStreams::precedes(earlier, later);
}

TEST(ChunkStreams, OverlapEncodingAndDecodingWithTheCollectivesOfOtherChunks) {
  const TwoHops exchange(5);
  EXPECT_THAT(exchange.collectives(), ::testing::ElementsAre("parts 0", "parts 1", "means 0", "means 1", "parts 2",
                                                             "parts 3", "means 2", "means 3", "parts 4", "means 4"));
  // Work that does not depend on a collective does not wait for it.
  EXPECT_FALSE(precedes("parts 0", "encode 1"));
  EXPECT_FALSE(precedes("parts 1", "average 0"));
  EXPECT_FALSE(precedes("means 0", "average 1"));
  EXPECT_FALSE(precedes("means 1", "decode 0"));
  EXPECT_FALSE(precedes("means 1", "encode 2"));
  EXPECT_FALSE(precedes("parts 2", "decode 1"));
  EXPECT_FALSE(precedes("parts 2", "encode 3"));
}

TEST(ChunkStreams, KeepTheOrderOfEachChunkAndOfCollectives) {
  const TwoHops exchange(4);
  for (int64_t chunk = 0; chunk < 4; ++chunk) {
    const std::vector<std::string> works{named("encode", chunk), named("parts", chunk), named("average", chunk),
                                         named("means", chunk), named("decode", chunk)};
    for (size_t i = 1; i < works.size(); ++i) EXPECT_TRUE(precedes(works[i - 1], works[i])) << works[i];
    EXPECT_TRUE(precedes("before", works.front()));
    EXPECT_TRUE(precedes(works.back(), "after"));
  }
  for (size_t i = 1; i < exchange.collectives().size(); ++i) {
    EXPECT_TRUE(precedes(exchange.collectives()[i - 1], exchange.collectives()[i]));
  }
}

TEST(ChunkStreams, HaveHighPriorityBesideTheCallersStream) {
  const TwoHops exchange(2);
  EXPECT_TRUE(SimulatedStreams::has_high_priority("encode 1"));
}

// Work in flight on the other stream is done before its memory is reused.
TEST(ChunkStreams, JoinWhenAStepThrows) {
  SimulatedStreams::reset();
  ChunkStreams streams;
  const auto step = [](int64_t chunk) {
    SimulatedStreams::enqueue(named("chunk", chunk));
    if (chunk == 1) throw std::runtime_error("lost");
  };
  EXPECT_THROW(streams.run(testing::kSimulatedDevice, 2, {step}), std::runtime_error);
  SimulatedStreams::enqueue("after");
  EXPECT_TRUE(precedes("chunk 1", "after"));
}

// A sticky device error also fails the join of the streams. The step's error is thrown.
TEST(ChunkStreams, ThrowTheErrorOfTheStepWhereTheyCannotBeJoined) {
  SimulatedStreams::reset();
  const auto step = [](int64_t chunk) {
    SimulatedStreams::break_events();
    if (chunk == 1) throw std::runtime_error("lost");
  };
  EXPECT_THAT([&] { ChunkStreams().run(testing::kSimulatedDevice, 2, {step}); },
              ::testing::ThrowsMessage<std::runtime_error>("lost"));
  SimulatedStreams::reset();
}

TEST(ChunkStreams, ThrowWhatJoiningThrows) {
  SimulatedStreams::reset();
  const auto step = [](int64_t) { SimulatedStreams::break_events(); };
  EXPECT_THAT([&] { ChunkStreams().run(testing::kSimulatedDevice, 2, {step}); },
              ::testing::ThrowsMessage<std::runtime_error>("no event can be recorded"));
  SimulatedStreams::reset();
}

TEST(ChunkStreams, AreInTheSameOrderOnTheCpu) {
  std::vector<std::string> calls;
  ChunkStreams().run(at::kCPU, 3,
                     {[&](int64_t chunk) { calls.push_back(named("first", chunk)); },
                      [&](int64_t chunk) { calls.push_back(named("second", chunk)); }});
  EXPECT_THAT(calls, ::testing::ElementsAre("first 0", "first 1", "second 0", "second 1", "first 2", "second 2"));
}

}  // namespace
}  // namespace narrowcast::collectives
