#include "trainer/train/data/text_corpus.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "tests/support/error_message.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/files/file_digest.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::data {
namespace {

using testing::digest_of_file;
using testing::error_message;
using testing::TemporaryFolder;

TEST(TextFiles, AFolderGivesItsTextFilesSortedByPath) {
  const TemporaryFolder folder;
  folder.write("b.txt", "");
  folder.write("sub/deeper/a.md", "");
  folder.write("a.cpp", "");
  folder.write("image.png", "");
  folder.write("no_suffix", "");
  folder.write("sub.txt/inner.h", "");  // a folder may have a suffix too
  EXPECT_EQ(list_text_files({folder.path()}),
            std::vector<std::string>(
                {folder / "a.cpp", folder / "b.txt", folder / "sub.txt/inner.h", folder / "sub/deeper/a.md"}));
}

TEST(TextFiles, HiddenNamesAreLeftOut) {
  const TemporaryFolder folder;
  folder.write("seen.txt", "");
  folder.write(".hidden.txt", "");
  folder.write(".git/config.txt", "");
  EXPECT_EQ(list_text_files({folder.path()}), std::vector<std::string>({folder / "seen.txt"}));
}

TEST(TextFiles, LinksToFoldersAreNotEntered) {
  const TemporaryFolder folder;
  folder.write("seen.txt", "");
  std::filesystem::create_directory_symlink(folder.path(), folder.path() / "circle");
  EXPECT_EQ(list_text_files({folder.path()}), std::vector<std::string>({folder / "seen.txt"}));
}

TEST(TextFiles, FilesStandForThemselvesInTheGivenOrder) {
  const TemporaryFolder folder;
  const std::string odd = folder.write("odd.bin", "");
  const std::string text = folder.write("sub/a.txt", "");
  EXPECT_EQ(list_text_files({odd, folder / "sub", odd}), std::vector<std::string>({odd, text, odd}));
}

TEST(TextFiles, WhatIsMissingIsNamed) {
  EXPECT_EQ(error_message<c10::ValueError>([] { list_text_files({"/nonexistent/x"}); }),
            "/nonexistent/x: does not exist");
  EXPECT_EQ(error_message<c10::ValueError>([] {
              list_text_files({"/nonexistent/x", "y"});
            }),
            R"(/nonexistent/x: does not exist; a comma within a path is written \,)");
  EXPECT_EQ(error_message<c10::ValueError>([] { list_text_files({}); }), "data: no file or folder is given");
  const TemporaryFolder folder;
  folder.write("image.png", "");
  const std::string path = folder.path();
  const std::string message = error_message<c10::ValueError>([&] { list_text_files({path}); });
  EXPECT_TRUE(message.starts_with(path + ": holds no text file (a file with one of the suffixes .c .cc")) << message;
}

TEST(TextFiles, AFolderThatCannotBeReadIsNamed) {
  const TemporaryFolder folder;
  folder.write("sub/deeper/a.txt", "");
  const std::vector<std::string> below = {folder.path(), folder / "sub", folder / "sub/deeper"};
  // A folder stays open while the folders in it are read. A limit of open files is used here because the superuser may
  // read any folder, whatever its permissions are.
  for (size_t readable = 0; readable < below.size(); ++readable) {
    const testing::OpenFileLimit limit(testing::next_descriptor() + readable);
    EXPECT_EQ(error_message<c10::ValueError>([&] { list_text_files({folder.path()}); }),
              below[readable] + ": cannot be read: Too many open files");
  }
}

TEST(TextFiles, SuffixesAreSortedAndHaveTheirDot) {
  EXPECT_TRUE(std::is_sorted(text_suffixes().begin(), text_suffixes().end()));
  for (const std::string_view suffix : text_suffixes()) {
    EXPECT_EQ(suffix[0], '.') << suffix;
  }
}

TEST(Vocabulary, OfTextIsSortedByCodePointWithoutRepeats) {
  const Vocabulary vocabulary = Vocabulary::of_text(U"b\u00e9a\nab\U0001f600");
  EXPECT_EQ(vocabulary.entries(), std::vector<std::string>({"\n", "a", "b", "\xc3\xa9", "\xf0\x9f\x98\x80"}));
  EXPECT_EQ(vocabulary.size(), 5);
  EXPECT_EQ(vocabulary.token(U'b'), 2);
  EXPECT_EQ(vocabulary.token(U'c'), -1);
}

TEST(Vocabulary, EncodeAndDecodeAreInverse) {
  const Vocabulary vocabulary({"b", "a", "\xc3\xa9"});  // in any order, as in a model file
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

TEST(Vocabulary, ALineStartsBehindTheOneBefore) {
  EXPECT_TRUE(Vocabulary({"a", "\n"}).line_start().equal(at::tensor({1}, at::kLong)));
  EXPECT_TRUE(Vocabulary({"a", "b"}).line_start().equal(at::tensor({0}, at::kLong)));
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

// The text that a corpus represents.
std::string text_of(const TextCorpus& corpus) {
  std::vector<int64_t> tokens(corpus.tokens().begin(), corpus.tokens().end());
  return corpus.vocabulary().decode(at::tensor(tokens, at::kLong));
}

TEST(TextCorpus, TokensStandForTheCharactersSortedByCodePoint) {
  const TextCorpus corpus = TextCorpus(U"banan\u00e9", "fruit");
  EXPECT_EQ(corpus.vocabulary().entries(), std::vector<std::string>({"a", "b", "n", "\xc3\xa9"}));
  EXPECT_EQ(std::vector<int32_t>(corpus.tokens().begin(), corpus.tokens().end()),
            std::vector<int32_t>({1, 0, 2, 0, 2, 3}));
  EXPECT_EQ(corpus.characters(), 6);
  EXPECT_EQ(corpus.name(), "fruit");
}

TEST(TextCorpus, RealTextComesBackByteForByte) {
  const std::string license = std::string(kSourceFolder) + "/LICENSE";
  const TextCorpus corpus = TextCorpus::from_paths({license});
  EXPECT_EQ(text_of(corpus), files::read_file(license));
  EXPECT_GT(corpus.characters(), 1000);
}

// The documentation has losses of exactly this file.
TEST(TextCorpus, TheDefaultTextNeverChanges) {
  const files::FileDigest digest = digest_of_file(default_text_path());
  EXPECT_EQ(digest.bytes, 1'115'394);
  EXPECT_EQ(digest.sha256, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed");
  EXPECT_EQ(TextCorpus::from_paths({default_text_path()}).vocabulary().size(), 65);
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
  EXPECT_EQ(error_message<c10::ValueError>([] { TextCorpus(U"", "prompt"); }), "prompt: holds no text");
  EXPECT_EQ(error_message<c10::ValueError>([] { TextCorpus::from_paths({}); }), "data: no file or folder is given");
  EXPECT_EQ(error_message<c10::ValueError>([] { TextCorpus::from_paths({"/nonexistent/x"}); }),
            "/nonexistent/x: does not exist");
}

double entropy_of(const std::string& text) {
  return bigram_entropy(TextCorpus(decode_utf8(text).code_points, "text").tokens());
}

TEST(BigramEntropy, IsAsComputedByHand) {
  // Each comment lists the text's pairs and the result. For sums of a few doubles below 2, a tolerance of 4 units of
  // 2^-52 is enough.
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
  const double entropy = bigram_entropy(TextCorpus::from_paths({std::string(kSourceFolder) + "/LICENSE"}).tokens());
  EXPECT_GT(entropy, 1.5);
  EXPECT_LT(entropy, 3);
}

}  // namespace
}  // namespace narrowcast::data
