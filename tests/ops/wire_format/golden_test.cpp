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
     "2e3e3605555555aa00f0ff00c00ffce03ccfd39a730ce31cb43c2d650200000005000000040000000100000002000000",
     "343e4605555555aa00f0ff00c00ffce03ccfd318b11ce39e722cace70200000005000000000000000400000007000000"},
    {WireFormat::kVar5, "b43e4504555555aa00f0ff00c00ffce03ccff39ef33ccf1802000000050000000400000003000000",
     "c03e5504555555aa00fcff00d003fce02cc3d39ae311e32c02000000050000000000000006000000"},
    {WireFormat::kVar4, "163f04c4555515aa00fcbf00f003bfe80dc3b09602000000050000000400000003000000",
     "203f04b4555555aa00fdff00f002fce88dd2d3b202000000050000000000000006000000"},
    {WireFormat::kVar3, "163f04c4555515aa00fcbf00f003bfe80dc3b09602000000050000000400000003000000",
     "203f04b4555555aa00fdff00f002fce88dd2d3b202000000050000000000000006000000"}};

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
            "423d00070000010000000000000000000000000000000000000000000000010000000000");
}

// Counted by hand. Of three blocks the first and the last are faint, at random far below the step.
TEST(GoldenBytesOfFaintBlocks, AreAsDocumented) {
  test::Floats x(71, 0.0F);
  x[40] = -3;      // 220 / 256 is the least step of which no more than 3 are needed.
  x[5] = 0.5F;     // 0.34 is needed: 5 quarters of an octave below the step are 0.367,
  x[66] = -0.45F;  // and 6 are 0.305, where 0.303 is needed,
  x[70] = 0.4F;    // which this is nearer to than 0.
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, x, {})),
            "5c3f520362"                // Widths of 2, 3 and 2.
            "0000000020000000"          // Signs, and magnitudes.
            "000100000000000000010000"  // -3 is 101.
            "0400000044000000"
            "000000");
  x[5] = 0.01F;     // 26 quarters, 16 of which the lower half of the header says, are 1.5 * 2^-7.
  x[66] = -0.004F;  // 31 are 1.25 * 2^-8.
  x[70] = 1.1e-19F;
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, x, kRandom)),
            "803fa103f1"  // 1: at random nothing above 3 steps can be.
            "0000000020000000"
            "000100000000000000010000"
            "0400000004000000"
            "000000");
}

// Also counted by hand: the words of a group follow those of the group before, and zeros have none.
TEST(GoldenBytesOfTwoGroups, AreAsDocumented) {
  test::Floats x(1056, 0.0F);
  x[0] = 1;             // 129 / 2^21 is the least step of which no more than 16383 are needed: 0x3F81 of them.
  x[40] = 0x1p-14F;     // 2 quarters of an octave below the step.
  x[100] = 0x1p-12F;    // 4 steps, but 7 of one that is 15 sixteenths of an octave below.
  x[200] = 0x1p-22F;    // More than 31 quarters below.
  x[1030] = -0x1p-20F;  // 26 quarters, 16 of which the lower half of the header says.
  const auto zeros = [](size_t bytes) { return std::string(2 * bytes, '0'); };
  const std::string expected = "81380f2200f4" + zeros(28) + "a1" +  // The step and the headers.
                               zeros(4) + "01000000010000000100000001000000010000000100000001000000" + zeros(24) +
                               "01000000" +                             // Element 0 of block 0.
                               zeros(4) + "00010000" +                  // Element 8 of block 1.
                               zeros(4) + "100000001000000010000000" +  // Element 4 of block 3.
                               "4000000040000000";                      // Element 6 of block 32.
  const std::string bytes = hex(test::plain_encode(WireFormat::kVar4, x, {}));
  EXPECT_EQ(bytes, expected + zeros((bytes.size() - expected.size()) / 2));
}

}  // namespace
}  // namespace narrowcast
