#include "ops/common/text.h"

#include <gtest/gtest.h>

#include <vector>

namespace narrowcast {
namespace {

using namespace std::string_literals;

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
                                           BadUtf8{"\xc3\xa9\xe2\x82", 2},      // cut off after a complete character
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

TEST(Printable, TextForPeopleStaysAsItIs) {
  for (const std::string text :
       {"", "steps: must be at least 1", "C:\\path 'x' \"y\"", "\xc3\xa9t\xc3\xa9 \xe2\x82\xac"}) {
    EXPECT_EQ(printable(text), text);
  }
}

struct Shown {
  std::string text;
  std::string shown;
};

class PrintableEscapes : public ::testing::TestWithParam<Shown> {};

TEST_P(PrintableEscapes, WhatATerminalWouldObey) {
  EXPECT_EQ(printable(GetParam().text), GetParam().shown);
  EXPECT_EQ(printable(printable(GetParam().text)), GetParam().shown);
}

INSTANTIATE_TEST_SUITE_P(Texts, PrintableEscapes,
                         ::testing::Values(Shown{"a\nb\tc\r", R"(a\nb\tc\r)"},        //
                                           Shown{"\x1b[31mred", R"(\x1b[31mred)"},    //
                                           Shown{"nul\0\x7f"s, R"(nul\x00\x7f)"},     //
                                           Shown{"\xff\xc3", R"(\xff\xc3)"},          // not UTF-8, and cut off
                                           Shown{"\xed\xa0\x80", R"(\xed\xa0\x80)"},  // a surrogate
                                           Shown{"\xc2\x9b"
                                                 "31m",
                                                 R"(\u009b31m)"},  // CSI in one character
                                           Shown{"\xe2\x80\xae"
                                                 "exe",
                                                 R"(\u202eexe)"},
                                           Shown{"\xe2\x80\xa8.", R"(\u2028.)"}, Shown{"\xd8\x9c.", R"(\u061c.)"}));

TEST(Printable, EveryByteAndEveryCharacterIsOneLineOfUtf8WithoutControls) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
  }
  for (char32_t value = 0; value < 0x3000; ++value) {
    all += encode_utf8({&value, 1});
  }
  const std::u32string separating_and_reordering =  // the latter have Unicode's Bidi_Control
      U"\u2028\u2029\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069";
  const DecodedUtf8 shown = decode_utf8(printable(all, 10 * all.size()));
  EXPECT_FALSE(shown.first_bad_byte.has_value());
  for (const char32_t value : shown.code_points) {
    EXPECT_TRUE(value >= 0x20 && (value < 0x7f || value > 0x9f)) << static_cast<uint32_t>(value);
    EXPECT_EQ(separating_and_reordering.find(value), std::u32string::npos) << static_cast<uint32_t>(value);
  }
}

TEST(Printable, LongTextIsCutInTheMiddleAndSaysSo) {
  const std::string text = "begin" + std::string(50'000'000, 'x') + "end";
  const std::string shown = printable(text);
  EXPECT_LE(shown.size(), kLongestMessage);
  EXPECT_GE(shown.size(), kLongestMessage - 2);
  EXPECT_EQ(shown.substr(0, 6), "beginx");
  EXPECT_NE(shown.find("x [50000008 bytes] x"), std::string::npos);
  EXPECT_EQ(shown.substr(shown.size() - 4), "xend");
}

TEST(Printable, IsNoLongerThanAsked) {
  for (const size_t most : {30, 31, 64, 200}) {
    EXPECT_EQ(printable(std::string(most, 'x'), most), std::string(most, 'x'));
    for (const char* const unit : {"x", "\x1b", "\xff", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xe2\x80\xae"}) {
      std::string text;
      while (text.size() <= most) {
        text += unit;
      }
      const std::string shown = printable(text, most);
      EXPECT_LE(shown.size(), most);
      EXPECT_FALSE(decode_utf8(shown).first_bad_byte.has_value()) << shown;
      EXPECT_NE(shown.find(" [" + std::to_string(text.size()) + " bytes] "), std::string::npos) << shown;
    }
  }
}

TEST(PrintableText, KeepsItsLinesAndEscapesWhatATerminalWouldObey) {
  for (const std::string text : {"", "\n", "\n\ta b\n\n", "no end", "\xe2\x82\xac\n"}) {
    EXPECT_EQ(printable_text(text), text);
  }
  EXPECT_EQ(printable_text("a\x1b]0;title\x07\r\n\xc2\x9b\t\xe2\x80\xae\xff"),
            "a\\x1b]0;title\\x07\\r\n\\u009b\t\\u202e\\xff");
  const std::string large(1'000'000, 'x');
  EXPECT_EQ(printable_text(large), large);
}

TEST(InQuotes, IsUnambiguousAndShort) {
  EXPECT_EQ(in_quotes(""), "''");
  EXPECT_EQ(in_quotes("blocks.0.weight"), "'blocks.0.weight'");
  EXPECT_EQ(in_quotes("it's a \\n\n"), R"('it\'s a \\n\n')");
  const std::string cut = in_quotes(std::string(1000, 'n'));
  EXPECT_LE(cut.size(), 202u);
  EXPECT_NE(cut.find("n [1000 bytes] n"), std::string::npos);
}

TEST(DescribeRanks, NamesOneOrSeveral) {
  EXPECT_EQ(describe_ranks({3}), "rank 3");
  EXPECT_EQ(describe_ranks({1, 2, 10}), "ranks 1, 2, 10");
}

}  // namespace

}  // namespace narrowcast
