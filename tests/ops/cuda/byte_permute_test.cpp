#include "ops/cuda/byte_permute.h"

#include <gtest/gtest.h>

namespace narrowcast::cuda {
namespace {

TEST(BytePermute, TakesTheBytesThatTheSelectorNames) {
  EXPECT_EQ(byte_permute(0x44332211U, 0x88776655U, 0x7053U), 0x88116644U);
  EXPECT_EQ(byte_permute(0x44332211U, 0x88776655U, 0x3210U), 0x44332211U);
}

}  // namespace
}  // namespace narrowcast::cuda
