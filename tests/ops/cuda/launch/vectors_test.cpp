#include "ops/cuda/launch/vectors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

namespace narrowcast::cuda {
namespace {

TEST(BytePermute, TakesTheBytesThatTheSelectorNames) {
  EXPECT_EQ(byte_permute(0x44332211U, 0x88776655U, 0x7053U), 0x88116644U);
  EXPECT_EQ(byte_permute(0x44332211U, 0x88776655U, 0x3210U), 0x44332211U);
}

TEST(SignedByte, IsEveryInt8AsAFloat) {
  for (int code = -128; code < 128; ++code) {
    const uint32_t word = (static_cast<uint32_t>(code) & 0xFFU) << 8 | 0x80007FU | 0xFF000000U;
    EXPECT_EQ(signed_byte(word, 0), 127);
    EXPECT_EQ(signed_byte(word, 1), code);
    EXPECT_EQ(signed_byte(word, 2), -128);
    EXPECT_EQ(signed_byte(word, 3), -1);
  }
}

TEST(Pack, IsAlignedAsAWholeUpToSixteenBytes) {
  EXPECT_EQ(alignof(Pack<uint16_t, 4>), 8);
  EXPECT_EQ(alignof(Pack<float, 4>), 16);
  EXPECT_EQ(alignof(Pack<double, 4>), 16);
}

TEST(Pack, IsReadAndWrittenWhereItIsAligned) {
  alignas(16) uint16_t memory[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto pack = load_pack<4, true>(memory + 4);
  EXPECT_EQ(pack.values[3], 8);
  store_pack<4, true>(pack, memory);
  EXPECT_EQ(memory[0], 5);
  EXPECT_THROW((load_pack<4, true>(memory + 1)), std::logic_error);
  EXPECT_THROW((store_pack<4, true>(pack, memory + 1)), std::logic_error);
}

TEST(Pack, IsReadAndWrittenElementByElementElsewhere) {
  alignas(16) uint16_t memory[] = {1, 2, 3, 4, 5, 6, 7, 8};
  store_pack<4, false>(load_pack<4, false>(memory + 3), memory + 1);
  EXPECT_EQ(memory[1], 4);
  EXPECT_EQ(memory[4], 7);
}

TEST(Pack, BeginsSoManyElementsFurtherOn) {
  alignas(16) const uint16_t memory[16] = {};
  EXPECT_EQ(elements_to_alignment<8>(memory), 0);
  EXPECT_EQ(elements_to_alignment<8>(memory + 3), 5);
}

}  // namespace
}  // namespace narrowcast::cuda
