// The bytes of the wire formats, written down: another version, machine or
// language must write the same. A second implementation, in Python, made them.
#include <gtest/gtest.h>

#include <string>

#include "tests/ops/wire_format/wire_inputs.h"

namespace narrowcast {
namespace {

// What 35 elements become: a whole block of 32 and one of 3, or one that is not full.
struct Golden {
  WireFormat format;
  const char* nearest;
  const char* stochastic;
};

const Golden kGolden[] = {
    {WireFormat::kInt8B32, "0e3d82078d12971da228ad32b83dc348ce53d85ee369ee73f97e04890e94199f24a9aa3c4e8260",
     "0e3d82078c12971da228ad33b83ec348cd53d85ee369ee73f87f04890e94199f24aaaa3c4e8160"},
    {WireFormat::kInt8B128, "0e3d82078d12971da228ad32b83dc348ce53d85ee369ee73f97e04890e94199f24a92fb43a",
     "0e3d82078c12971da228ad33b83ec348cd53d85ee369ee73f87f04890e94199f24aa2eb43a"},
    {WireFormat::kInt8B256, "0e3d82078d12971da228ad32b83dc348ce53d85ee369ee73f97e04890e94199f24a92fb43a",
     "0e3d82078c12971da228ad33b83ec348cd53d85ee369ee73f87f04890e94199f24aa2eb43a"},
    {WireFormat::kInt6B32, "113ea14012e6912a2ce33eb14453f6956b3ce77fc14898069aacae3d538801",
     "113e613016e6912a6cf33e713453f6956b3ce77fc13898069aacae3d538801"},
    {WireFormat::kInt4B32, "203f091a2a2b3b3c4d5d5e6e6f7090a1b1b2c03e9405",
     "203f09192a3a3c4c4d5d5d6e6f7f90a0b1b2c03e9405"},
    {WireFormat::kFp8E4M3B32, "203cfe5dfd68fc6dfa71f973f876f678f379f17aed7ce87ddd7e55fd65fc6bfb70fac03b79fe7b",
     "203cfe5dfc68fc6dfa71f973f876f678f379f07aed7ce87cdc7e55fd64fc6bfb70fac03b78fe7b"},
    {WireFormat::kBf16,
     "bbbfab3dabbf553e9bbfab3e8bbfeb3e75bf153f55bf353f35bf553f15bf753febbe8b3fabbe9b3f55beab3fabbdbb3f2b3d"
     "b0bf2b3ea0bf953e90bfd53e80bf0b3f60bf2b3f",
     "bbbfaa3daabf553e9bbfab3e8abfeb3e76bf163f56bf363f36bf553f15bf753feabe8b3faabe9b3f56beaa3faabdbb3f2b3d"
     "b0bf2a3ea0bf953e90bfd63e80bf0a3f60bf2b3f"},
    {WireFormat::kFp16,
     "d5bd552d55bdab32d5bc553555bc5537abbbab38abbaab39abb9ab3aabb8ab3b55b7553c55b5d53cabb2553d55add53d5529"
     "80bd553100bdab3480bcab3600bc553800bb5539",
     "d6bd552d55bdab32d5bc553555bc5637abbbab38abbaab39abb9aa3aaab8ab3b55b7553c55b5d63cabb2553d55add63d5529"
     "80bd553100bdaa3480bcab3600bc553800bb5539"},
    {WireFormat::kFp32,
     "abaababfabaaaa3dabaaaabf5555553eabaa9abfabaaaa3eabaa8abfabaaea3e555575bf5555153f555555bf5555353f5555"
     "35bf5555553f555515bf5555753fabaaeabeabaa8a3fabaaaabeabaa9a3f555555beabaaaa3fabaaaabdabaaba3fabaa2a3d"
     "0000b0bfabaa2a3e0000a0bf5555953e000090bf5555d53e000080bfabaa0a3f000060bfabaa2a3f",
     "abaababfabaaaa3dabaaaabf5555553eabaa9abfabaaaa3eabaa8abfabaaea3e555575bf5555153f555555bf5555353f5555"
     "35bf5555553f555515bf5555753fabaaeabeabaa8a3fabaaaabeabaa9a3f555555beabaaaa3fabaaaabdabaaba3fabaa2a3d"
     "0000b0bfabaa2a3e0000a0bf5555953e000090bf5555d53e000080bfabaa0a3f000060bfabaa2a3f"},
    {WireFormat::kVar6,
     "2e3e45555555aa00d4ff00d42bf5aa696958f03173c6cc52bd4a55020000000500000004000000010000000200000000",
     "343e45555555aa00d5ff00d42ad5aa697878f0316666cc570098fb020000000500000000000000040000000700000000"},
    {WireFormat::kVar5, "b43e34555555aa00d5ff00d52ad5ea787878b06666668c0200000005000000040000000300000000",
     "c03e34555555aa00d5ff80d52ad56a787c7838655356260200000005000000000000000600000000"},
    {WireFormat::kVar4, "163f33555515aa00fcbf00f003bfe80dc3b0960200000002000000050000000500000000",
     "203f33555555aa00fdff00f002fce88dd2d3b20200000000000000070000000600000000"},
    {WireFormat::kVar3, "163f33555515aa00fcbf00f003bfe80dc3b0960200000002000000050000000500000000",
     "203f33555555aa00fdff00f002fce88dd2d3b20200000000000000070000000600000000"}};

constexpr codec::wire::Rounding kRandom{true, 0x0123456789ABCDEF, 3, 5};

// Eighths for block formats, and their thirds, which need rounding, for the others.
test::Floats input(WireFormat format) {
  test::Floats x;
  for (int i = 0; i < 35; ++i) {
    const float eighths = static_cast<float>(i * 37 % 71 - 35) / 8;
    x.push_back(test::block_of(format) > 1 ? eighths : eighths / 3);
  }
  return x;
}

std::string hex(const test::Bytes& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

class GoldenBytes : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenBytes, OfRoundingToNearest) {
  const auto& [format, nearest, stochastic] = GetParam();
  EXPECT_EQ(hex(test::plain_encode(format, input(format), {})), nearest);
}

TEST_P(GoldenBytes, OfStochasticRounding) {
  const auto& [format, nearest, stochastic] = GetParam();
  EXPECT_EQ(hex(test::plain_encode(format, input(format), kRandom)), stochastic);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenBytes, ::testing::ValuesIn(kGolden),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param.format)); });

TEST(GoldenBytesOfWhatIsRare, AreAsDocumented) {
  const float nan = codec::float_of_bits(0xFFC01234U);
  const float inf = codec::float_of_bits(codec::kInfBits);
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kInt8B32, {1, nan}, {})), "c07f0000");
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kInt4B32, {1, -inf, 3}, kRandom)), "c07f0000");
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kFp8E4M3B32, {0x1p-120F, -0x1p-120F}, {})), "00000080");
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kInt6B32, {0x1p-120F, -0x1p-149F}, {})), "00000000");
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kBf16, {nan, -inf, 3.4e38F}, {})), "c07f80ff807f");
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kFp16, {nan, -inf, 65519, 65520}, {})), "007e00fcff7b007c");
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kFp32, {nan, -inf}, {})), "0000c07f000080ff");
  const std::string zeros(68, '0');
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar4, {1, nan}, {})), "c07f" + zeros);
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, {3.4e38F}, kRandom)), "c07f" + zeros);
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar5, {0x1p-120F, -0x1p-149F}, {})), "800d" + zeros);
  test::Floats one_of_many(71, 0.0F);
  one_of_many[40] = -3;
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, one_of_many, {})),
            "c13c70000001000000000000000000000000000000000000000000000000000000010000");
}

// Counted by hand. Of three blocks the first and the last are faint, at random far below the step.
TEST(GoldenBytesOfFaintBlocks, AreAsDocumented) {
  test::Floats x(71, 0.0F);
  x[40] = -3;      // 220 / 256 is the least step of which no more than 3 are needed.
  x[5] = 0.5F;     // 2 quarters of a power of two below the step.
  x[66] = -0.45F;  // 0.4375, 3 of them,
  x[70] = 0.4F;    // which this is nearer to than 0.
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, x, {})),
            "5c3f2101"                  // Widths of 2, 3 and 2.
            "0000000020000000"          // Signs, and magnitudes.
            "000100000000000000010000"  // -3 is 101.
            "0400000044000000"
            "02030000");
  x[5] = 0.01F;
  x[66] = -1.2e-19F;
  x[70] = 1.1e-19F;
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, x, kRandom)),
            "803f2101"  // 1: at random nothing above 3 steps can be.
            "0000000020000000"
            "000100000000000000010000"
            "0400000044000000"
            "1afb0000");  // 1.5 * 2^-7, and 1.25 * 2^-63.
}

// Also counted by hand: the scales of a group follow its own words.
TEST(GoldenBytesOfTwoGroups, AreAsDocumented) {
  test::Floats x(1056, 0.0F);
  x[0] = 1;
  x[40] = 0x1p-40F;
  x[1030] = -0x1p-41F;
  const auto zeros = [](size_t bytes) { return std::string(2 * bytes, '0'); };
  const std::string expected = "01381f" + zeros(15) + "01" +  // A step of 129 / 2^22, of which 1 is 0x7F02.
                               zeros(4) + "01000000010000000100000001000000010000000100000001000000" + zeros(24) +
                               "01000000" + zeros(4) +  //
                               zeros(4) + "00010000" +  // Element 8 of block 1.
                               "64" +                   // 100 quarters of a power of two below the step.
                               "4000000040000000" + "68";
  const std::string bytes = hex(test::plain_encode(WireFormat::kVar4, x, {}));
  EXPECT_EQ(bytes, expected + zeros((bytes.size() - expected.size()) / 2));
}

}  // namespace
}  // namespace narrowcast
