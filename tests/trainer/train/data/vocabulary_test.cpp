#include "trainer/train/data/vocabulary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::data {
namespace {

using narrowcast::testing::error_message;

TEST(Vocabulary, OfTextIsSortedByCodePointWithoutRepeats) {
  const Vocabulary vocabulary = Vocabulary::of_text(U"b\u00e9a\nab\U0001f600");
  EXPECT_EQ(vocabulary.entries(), std::vector<std::string>({"\n", "a", "b", "\xc3\xa9", "\xf0\x9f\x98\x80"}));
  EXPECT_EQ(vocabulary.size(), 5);
  EXPECT_EQ(vocabulary.token(U'b'), 2);
  EXPECT_EQ(vocabulary.token(U'c'), -1);
}

TEST(Vocabulary, EncodeAndDecodeAreInverse) {
  const Vocabulary vocabulary({"b", "a", "\xc3\xa9"});  // any order, as a model file may have
  const at::Tensor tokens = vocabulary.encode(
      "a\xc3\xa9"
      "bb");
  EXPECT_TRUE(tokens.equal(at::tensor({1, 2, 0, 0}, at::kLong)));
  EXPECT_EQ(vocabulary.decode(tokens),
            "a\xc3\xa9"
            "bb");
  EXPECT_EQ(vocabulary.encode("").numel(), 0);
  EXPECT_EQ(vocabulary.decode(vocabulary.encode("")), "");
}

TEST(Vocabulary, StridedTokensAreReadInOrder) {
  const Vocabulary vocabulary({"a", "b", "c"});
  EXPECT_EQ(vocabulary.decode(at::tensor({0, 9, 2, 9, 1, 9}, at::kLong).slice(0, 0, 6, 2)), "acb");
}

TEST(Vocabulary, UnknownCharactersAndTokensAreNamed) {
  const Vocabulary vocabulary({"a", "\xc3\xa9"});
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              vocabulary.encode(
                  "\xc3\xa9"
                  "aX");
            }),
            "text: the character 'X' at byte 3 is not in the vocabulary of 2 characters");
  EXPECT_EQ(error_message<c10::ValueError>([&] { vocabulary.encode("a\xff"); }), "text: is not UTF-8 at byte 1");
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              vocabulary.decode(at::tensor({0, 2}, at::kLong));
            }),
            "tokens must be in 0..1, but one is 2");
  EXPECT_THROW(vocabulary.decode(at::tensor({-1}, at::kLong)), c10::ValueError);
  EXPECT_THROW(vocabulary.decode(at::tensor({0.5})), c10::ValueError);
}

TEST(Vocabulary, EntriesAreDifferentSingleCharacters) {
  EXPECT_EQ(error_message<c10::ValueError>([] {
              Vocabulary({"a", "bc"});
            }),
            "vocabulary: entry 1, 'bc', is not one character");
  EXPECT_EQ(error_message<c10::ValueError>([] { Vocabulary({""}); }), "vocabulary: entry 0, '', is not one character");
  EXPECT_EQ(error_message<c10::ValueError>([] {
              Vocabulary({"a", "b", "a"});
            }),
            "vocabulary: entry 2, 'a', occurs twice");
}

}  // namespace
}  // namespace narrowcast::data
