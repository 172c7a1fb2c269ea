// Reference bytes of the wire formats: another version, machine or language must write the same bytes. An independent
// implementation in Python made them.
#include <gtest/gtest.h>

#include <string>

#include "tests/ops/wire_format/wire_inputs.h"

namespace narrowcast {
namespace {

// The message of 35 elements: a whole block of 32 and one of 3, or one partial block. In variable formats 99 elements,
// because shorter messages have the same size for any number of bits; in sparse formats 300, of which some are kept.
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
     "8d3ebc80bc8e555555aa00f4ff00d00bfce82c49d392679a6134e1c38707aa2a5555f87f00f8077ee007c7711ce7b46ddb96"
     "d5aaaa2a7f00fa7f7de8057e5296a469e633cd30f0f0e1c30500000000000000faffffff06000000050000000000",
     "923ebc80bc8e555555aa00f4ff00d00bf4e82d49db92649b4926d3522db5aa2a5555f87f00fc077ef003c6794ce3a5418392"
     "d5aaaa2a7f00fa7f7de8057ad296a42d64b2c964566bedf30500000000000000faffffff06000000050000000000"},
    {WireFormat::kVar5,
     "123f9c609c72555555aa00f4ff00d00bf5e86d4bda9636996cb2aa2a5555fc7f00fc037ef003e379cfe395aaaa2a3f00fa7f"
     "3de8857a92b6256d269b4c360500000000000000faffffff060000000000",
     "1c3f9c609c72555555aa00d5ff00d42ad4ea6978fbb0b1ae6d8caa2a5555f87f00f5877ef40a66794bea95aaaa2a3f00ea7f"
     "3dea957a96b43c2d909871620500000000000000feffffff020000000000"},
    {WireFormat::kVar4,
     "9c3f7c407c56555515aa00f5bf80d40ab56a795a9e34aa0a5555fe5f00ff815ffd4095aaaa0a3f80fa5f3d6a855a963c2d4f"
     "0500000002000000f8ffffff0000",
     "b63f7c407c5a555555aa00d5ffa0d53ad54a796f781aaa225555fa7750f5a573a54a95aaaa0a3f80ea5f956abd0a3c3e1458"
     "0500000000000000feffffff0000"},
    {WireFormat::kVar3,
     "37405c085c0e555505aa50f5afa8a55aa552aa005555ff55d5ff85aaaa022fa8fa57a552ad5205000000000000000000",
     "8a405c085c10555545aa5555cdaaa0ff67e82a0015117e5515b181aa820aa9aac24b0380951e05000000040000000000"},
    // Rounding is never stochastic.
    {WireFormat::kTop2P15, "8c408c401bc0757811", "8c408c401bc0757811"},
    {WireFormat::kTop2P31, "8c408c403355817bbc2b95f1888800", "8c408c403355817bbc2b95f1888800"}};

constexpr codec::wire::Rounding kRandom{true, 0x0123456789ABCDEF, 3, 5};

// Eighths for block formats. Other formats use thirds of them, which need rounding.
test::Floats input(WireFormat format) {
  test::Floats x;
  for (int i = 0; i < (codec::wire::is_sparse(format) ? 300 : codec::wire::is_variable(format) ? 99 : 35); ++i) {
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
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, {0x1.fa0002p127F}, kRandom)), "c07f" + zeros);
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, {-0x1.fap127F}, {})), "fd7be001" + zeros.substr(4));
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar5, {0x1p-120F, -0x1p-149F}, {})), "800d" + zeros);
  test::Floats one_of_many(71, 0.0F);
  one_of_many[40] = -3;
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, one_of_many, {})),
            "193d00c2000001000000000000fffeffff00000000000000000000000000000000000000");
}

// Computed by hand: the three kept of 200 elements, in Elias-Fano's code.
TEST(GoldenBytesOfPlaces, AreAsDocumented) {
  test::Floats x(200, 0.0F);
  x[3] = 7;
  x[130] = -2;
  x[131] = 1.5;
  // Levels 1.75, the mean of 2 and 1.5, and 7. Places 3 and 130 and 131 have the upper parts 0, 2 and 2 and the lower
  // parts 3, 2 and 3. Bits from the first on: 1 0 0 1 1 0, then 110000 010000 110000, then codes 01 10 00.
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kTop2P15, x, {})), "e03fe040d9200c06");
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kTop2P15, {1, codec::float_of_bits(0xFFC01234U)}, {})), "c07fc07f0000");
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kTop2P15, {0x1p-120F, -0x1p-120F}, {})), "000000000000");
}

// Computed by hand. The first and the last of three blocks are faint; with random rounding they are far below the step.
TEST(GoldenBytesOfFaintBlocks, AreAsDocumented) {
  test::Floats x(71, 0.0F);
  x[40] = -3;      // 140 / 256 is the least step with which it is at most 5.49: 3 bits and a zero point of 1.
  x[5] = 0.5F;     // Needs a step of 0.201: 5 quarters of an octave below the message's step is 0.230, 6 is 0.199.
  x[66] = -0.45F;  // This needs 0.181.
  x[70] = 0.4F;    // This, on the other side, needs 0.268: 4 quarters below is 0.273.
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, x, {})),
            "0c3f134210"                // 2 bits and a negative step; 3 and a zero point; 2.
            "2000000000000000"          // 0.5 is -2 negative steps.
            "0001000000000000fffeffff"  // -3 is -5, so its code is -4; 0 has the code 1.
            "0400000040000000"          // -2 and 1.
            "000000");
  x[5] = 0.02F;     // 0.01005: 23 quarters are 0.0114, and 24 are 0.0094.
  x[66] = -0.005F;  // 0.0025 is farther below than the 27 quarters of a header.
  x[70] = 1.1e-19F;
  EXPECT_EQ(hex(test::plain_encode(WireFormat::kVar3, x, kRandom)),
            "1a3f37423e"  // 154 / 256: with random rounding -3 must be at most 4.99.
            "2000000000000000"
            "0001000000000000fffeffff"
            "0400000004000000"
            "000000");
}

// Also computed by hand: the words of a group follow those of the group before, and zeros have none.
TEST(GoldenBytesOfTwoGroups, AreAsDocumented) {
  test::Floats x(1056, 0.0F);
  x[0] = 1;             // 129 / 2^21 is the least step with which it is at most 16383.49: 0x3F81 steps.
  x[40] = 0x1p-14F;     // Has the code -2 down to a step of 0.40 * 2^-14; 5 quarters of an octave below is 0.44.
  x[100] = 0x1p-12F;    // 4 steps; -5, for which the step may be 0.728 * 2^-14 or more; 4 eighths below is 0.754.
  x[200] = 0x1p-22F;    // More than 27 quarters below.
  x[1030] = -0x1p-20F;  // Code -2 with a step 27 quarters below.
  const auto zeros = [](size_t bytes) { return std::string(2 * bytes, '0'); };
  const std::string expected = "813807130053" + zeros(28) + "3e" +  // The step and the headers.
                               zeros(4) + "01000000010000000100000001000000010000000100000001000000" + zeros(24) +
                               "01000000" +                          // Element 0 of block 0.
                               "00010000" + zeros(4) +               // Element 8 of block 1.
                               "10000000" + zeros(4) + "efffffff" +  // Element 4 of block 3; its zero point is 1.
                               "40000000" + zeros(4);                // Element 6 of block 32.
  const std::string bytes = hex(test::plain_encode(WireFormat::kVar4, x, {}));
  EXPECT_EQ(bytes, expected + zeros((bytes.size() - expected.size()) / 2));
}

}  // namespace
}  // namespace narrowcast
