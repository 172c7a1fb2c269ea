#include "trainer/train/data/text_corpus.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::data {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;

// The text that a corpus stands for.
std::string text_of(const TextCorpus& corpus) {
  std::vector<int64_t> tokens(corpus.tokens().begin(), corpus.tokens().end());
  return corpus.vocabulary().decode(at::tensor(tokens, at::kLong));
}

TEST(TextCorpus, TokensStandForTheCharactersSortedByCodePoint) {
  const TextCorpus corpus = TextCorpus::from_text("banan\xc3\xa9", "fruit");
  EXPECT_EQ(corpus.vocabulary().entries(), std::vector<std::string>({"a", "b", "n", "\xc3\xa9"}));
  EXPECT_EQ(std::vector<int32_t>(corpus.tokens().begin(), corpus.tokens().end()),
            std::vector<int32_t>({1, 0, 2, 0, 2, 3}));
  EXPECT_EQ(corpus.characters(), 6);
  EXPECT_EQ(corpus.name(), "fruit");
}

TEST(TextCorpus, RealTextComesBackByteForByte) {
  const std::string license = NARROWCAST_SOURCE_DIR "/LICENSE";
  const TextCorpus corpus = TextCorpus::from_paths({license});
  EXPECT_EQ(text_of(corpus), files::read_file(license));
  EXPECT_GT(corpus.characters(), 1000);
}

TEST(TextCorpus, FilesFollowEachOtherSortedByPathWithNothingBetween) {
  const TemporaryFolder folder;
  folder.write("b.txt", "second\r\n");
  folder.write("a/z.txt", "first ");
  folder.write("empty.txt", "");
  const TextCorpus corpus = TextCorpus::from_paths({folder.path()});
  EXPECT_EQ(text_of(corpus), "first second\r\n");
  EXPECT_EQ(corpus.name(), folder.path());
  EXPECT_EQ(text_of(TextCorpus::from_paths({folder / "b.txt", folder / "a"})), "second\r\nfirst ");
  EXPECT_EQ(TextCorpus::from_paths({folder / "b.txt", folder / "a"}).name(), folder / "b.txt" + " and 1 more");
}

TEST(TextCorpus, BinaryFilesOfAFolderAreLeftOutButNamedOnesAreRead) {
  const TemporaryFolder folder;
  folder.write("a.txt", "text");
  const std::string binary = folder.write("b.txt", std::string("x\0y", 3));
  EXPECT_EQ(text_of(TextCorpus::from_paths({folder.path()})), "text");
  EXPECT_EQ(TextCorpus::from_paths({binary}).characters(), 3);
}

TEST(TextCorpus, WhatIsNotUtf8IsCorruptAndNamesTheByte) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.txt", "good \xc3\xa9 bad \xe9");
  const std::string expected = path + ": is not UTF-8 text: byte 12 does not continue it";
  EXPECT_EQ(error_message<CorruptInputError>([&] { TextCorpus::from_paths({path}); }), expected);
  EXPECT_EQ(error_message<CorruptInputError>([&] { TextCorpus::from_paths({folder.path()}); }), expected);
}

TEST(TextCorpus, NoTextIsWrongUse) {
  const TemporaryFolder folder;
  const std::string empty = folder.write("a.txt", "");
  EXPECT_EQ(error_message<c10::ValueError>([&] { TextCorpus::from_paths({empty}); }), empty + ": holds no text");
  EXPECT_EQ(error_message<c10::ValueError>([] { TextCorpus::from_text("", "prompt"); }), "prompt: holds no text");
  EXPECT_EQ(error_message<c10::ValueError>([] { TextCorpus::from_paths({}); }), "data: no file or folder is given");
  EXPECT_EQ(error_message<c10::ValueError>([] { TextCorpus::from_paths({"/nonexistent/x"}); }),
            "/nonexistent/x: does not exist");
}

double entropy_of(const std::string& text) { return bigram_entropy(TextCorpus::from_text(text, "text").tokens()); }

TEST(BigramEntropy, IsAsComputedByHand) {
  // Each line: the text's pairs, and what they give. Sums of a few doubles below 2: 4 units of 2^-52 are ample.
  constexpr double kTolerance = 0x1p-50;
  EXPECT_EQ(entropy_of("a"), 0);
  EXPECT_EQ(entropy_of("aaaa"), 0);                                    // a is always followed by a
  EXPECT_EQ(entropy_of("abababab"), 0);                                // a by b, b by a
  EXPECT_NEAR(entropy_of("aab"), std::log(2), kTolerance);             // aa, ab: after a one half each
  EXPECT_NEAR(entropy_of("aabba"), std::log(2), kTolerance);           // aa ab bb ba
  EXPECT_NEAR(entropy_of("aabc"), 2.0 / 3 * std::log(2), kTolerance);  // aa ab bc: only two pairs are uncertain
  // aa x2, ab: -(2/3 ln 2/3 + 1/3 ln 1/3)
  EXPECT_NEAR(entropy_of("aaab"), std::log(3) - 2.0 / 3 * std::log(2), kTolerance);
}

TEST(BigramEntropy, OfIndependentCharactersIsNearTheirOwnEntropy) {
  std::string text;
  uint32_t state = 1;
  for (int i = 0; i < 100000; ++i) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' generator; its high bits are good enough here
    text.push_back(static_cast<char>('a' + (state >> 30)));
  }
  // The bias of counts: about (16 pairs - 4 firsts) / (2 n) = 6e-5; the spread is of the same order.
  EXPECT_NEAR(entropy_of(text), std::log(4), 5e-4);
}

TEST(BigramEntropy, OfRealTextIsBetweenTwoAndThree) {  // English text with its punctuation has about 2.4 nats
  const double entropy = bigram_entropy(TextCorpus::from_paths({NARROWCAST_SOURCE_DIR "/LICENSE"}).tokens());
  EXPECT_GT(entropy, 1.5);
  EXPECT_LT(entropy, 3);
}

}  // namespace
}  // namespace narrowcast::data
