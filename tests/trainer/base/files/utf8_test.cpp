#include "trainer/base/files/utf8.h"

#include <gtest/gtest.h>

#include <vector>

namespace narrowcast {
namespace {

TEST(Utf8, KnownSequencesGoBothWays) {
  const std::string bytes =
      "$\xc2\xa2\xe0\xa4\xb9\xe2\x82\xac\xed\x95\x9c\xf0\x90\x8d\x88";  // RFC 3629's kind of examples
  const std::u32string code_points = U"$\u00a2\u0939\u20ac\ud55c\U00010348";
  EXPECT_EQ(decode_utf8(bytes).code_points, code_points);
  EXPECT_FALSE(decode_utf8(bytes).first_bad_byte.has_value());
  EXPECT_EQ(encode_utf8(code_points), bytes);
}

TEST(Utf8, EveryCodePointGoesBothWays) {
  std::u32string all;
  for (char32_t value = 0; value <= 0x10ffff; ++value) {
    if (value < 0xd800 || value > 0xdfff) {
      all.push_back(value);
    }
  }
  const DecodedUtf8 decoded = decode_utf8(encode_utf8(all));
  EXPECT_FALSE(decoded.first_bad_byte.has_value());
  EXPECT_TRUE(decoded.code_points == all);
}

struct BadUtf8 {
  std::string bytes;
  size_t first_bad_byte;
};

class Utf8Refused : public ::testing::TestWithParam<BadUtf8> {};

TEST_P(Utf8Refused, NamesTheFirstBadByte) {
  const DecodedUtf8 decoded = decode_utf8(GetParam().bytes);
  ASSERT_TRUE(decoded.first_bad_byte.has_value());
  EXPECT_EQ(*decoded.first_bad_byte, GetParam().first_bad_byte);
  EXPECT_EQ(encode_utf8(decoded.code_points), GetParam().bytes.substr(0, GetParam().first_bad_byte));
}

INSTANTIATE_TEST_SUITE_P(Sequences, Utf8Refused,
                         ::testing::Values(BadUtf8{"\x80", 0},                  // continuation without a start
                                           BadUtf8{"ab\xff", 2},                // never a byte of UTF-8
                                           BadUtf8{"a\xc3", 1},                 // cut off
                                           BadUtf8{"\xc3\xa9\xe2\x82", 2},      // cut off after a good one
                                           BadUtf8{"\xe2\x82x", 0},             // continued wrongly
                                           BadUtf8{"\xc0\x80", 0},              // overlong zero
                                           BadUtf8{"\xc1\xbf", 0},              // overlong, two bytes
                                           BadUtf8{"\xe0\x9f\xbf", 0},          // overlong, three bytes
                                           BadUtf8{"\xf0\x8f\xbf\xbf", 0},      // overlong, four bytes
                                           BadUtf8{"\xed\xa0\x80", 0},          // first surrogate
                                           BadUtf8{"\xed\xbf\xbf", 0},          // last surrogate
                                           BadUtf8{"\xf4\x90\x80\x80", 0},      // U+110000
                                           BadUtf8{"\xf8\x88\x80\x80\x80", 0},  // five bytes
                                           BadUtf8{"latin \xe9t\xe9", 6}));

TEST(Utf8, IsCutBetweenCharacters) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";  // of 1, 2, 3, 4 and 1 bytes
  const std::vector<size_t> first = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  const std::vector<size_t> last = {0, 1, 1, 1, 1, 5, 5, 5, 8, 8, 10, 11, 11};
  for (size_t most = 0; most < first.size(); ++most) {
    EXPECT_EQ(first_characters(text, most), text.substr(0, first[most])) << most;
    EXPECT_EQ(last_characters(text, most), text.substr(text.size() - last[most])) << most;
  }
}

TEST(Utf8, WhatIsNoneIsCutAnywhere) {
  const std::string text(9, '\x80');
  for (size_t most = 4; most < 9; ++most) {
    EXPECT_EQ(first_characters(text, most).size(), most);
    EXPECT_EQ(last_characters(text, most).size(), most);
  }
}

}  // namespace
}  // namespace narrowcast
