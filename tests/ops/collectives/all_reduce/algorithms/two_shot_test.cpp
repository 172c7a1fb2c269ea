// Bytes of two shots; all_reduce_job_test.cpp tests the result.
#include <gtest/gtest.h>

#include <memory>
#include "ops/collectives/all_reduce/algorithms/two_shot.h"

namespace narrowcast::collectives {
namespace {

int64_t two_shot_bytes(int64_t rank, int64_t world_size, int64_t numel, WireFormat format) {
  return make_two_shot({.rank = rank, .world_size = world_size, .numel = numel, .format = format},
                       std::make_shared<MessageMemory>())
      ->payload_bytes();
}

TEST(TwoShot, SendsItsPartsOfTheOthersShardsAndTheMeanOfItsOwn) {
  for (const WireFormat format : kWireFormats) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(two_shot_bytes(rank, 3, 6144, format), 4 * encoded_size(2048, format)) << "six grains, two for each";
    }
  }
}

TEST(TwoShot, SendsNoMeanOfAnEmptyShard) {
  const int64_t whole = encoded_size(1000, WireFormat::kInt8B128);
  EXPECT_EQ(two_shot_bytes(0, 3, 1000, WireFormat::kInt8B128), whole) << "a grain has one owner";
  EXPECT_EQ(two_shot_bytes(1, 3, 1000, WireFormat::kInt8B128), whole);
  EXPECT_EQ(two_shot_bytes(2, 3, 1000, WireFormat::kInt8B128), 2 * whole);
  EXPECT_EQ(two_shot_bytes(0, 4, 0, WireFormat::kFp32), 0);
}

// For any size and number of chunks, a rank sends 2 (W - 1) / W of a message.
TEST(TwoShot, SendsTheSameShareOfLargeArrays) {
  const int64_t numel = int64_t{5} << 22;
  EXPECT_EQ(two_shot_bytes(3, 5, numel, WireFormat::kInt4B32), 8 * encoded_size(numel / 5, WireFormat::kInt4B32));
}

}  // namespace
}  // namespace narrowcast::collectives
