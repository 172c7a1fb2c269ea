#include "trainer/train/data/token_files.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include <narrowcast/errors.h>
#include "tests/support/data_files.h"
#include "tests/support/error_message.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/data/text_corpus.h"

namespace narrowcast::data {
namespace {

using namespace narrowcast::testing;

constexpr int64_t kAllUint16 = 65536;  // A vocabulary that contains all tokens of the tests.

std::vector<int64_t> tokens_of(const TokenFile& file) {
  std::vector<int64_t> tokens(static_cast<size_t>(file.size()));
  file.copy(0, file.size(), kAllUint16, tokens.data());
  return tokens;
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers(static_cast<size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

struct Layout {
  TokenLayout layout;
  std::string name;
  std::string bytes;  // of the tokens 258, 0, 65535
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {TokenLayout::kRaw, "train.bin", std::string("\x02\x01\x00\x00\xff\xff", 6)},
      {TokenLayout::kGpt2, "x_train_1.bin",
       std::string("\x88\xd8\x34\x01\x01\x00\x00\x00\x03\x00\x00\x00", 12) + std::string(1012, '\0') +
           std::string("\x02\x01\x00\x00\xff\xff", 6)},
      {TokenLayout::kLlama3, "x_val.bin",
       std::string("\xa1\xd9\x34\x01\x07\x00\x00\x00\x03\x00\x00\x00", 12) + std::string(1012, '\0') +
           std::string("\x02\x01\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00", 12)}};
  return all;
}

class TokenLayouts : public ::testing::TestWithParam<size_t> {
 protected:
  // The error of opening a file of these bytes, without the path.
  std::string error(const std::string& bytes) const {
    const std::string path = folder_.write(layout_.name, bytes);
    const std::string message = error_message<CorruptInputError>([&] { TokenFile{path}; });
    return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
  }

  const TemporaryFolder folder_;
  const Layout& layout_ = layouts()[GetParam()];
};

TEST_P(TokenLayouts, GiveTheTokensThatWereWritten) {
  const TokenFile file(folder_.write(layout_.name, layout_.bytes));
  EXPECT_EQ(file.layout(), layout_.layout);
  EXPECT_EQ(tokens_of(file), std::vector<int64_t>({258, 0, 65535}));
  EXPECT_EQ(file.greatest(), 65535);
  int64_t token = -1;
  file.copy(1, 1, 1, &token);
  EXPECT_EQ(token, 0);
}

TEST_P(TokenLayouts, ATokenOutsideTheVocabularyIsNamedWhereItIsRead) {
  const TokenFile file(folder_.write(layout_.name, layout_.bytes));
  std::vector<int64_t> out(2);
  EXPECT_NO_THROW(file.copy(0, 2, 259, out.data()));
  const int64_t header = layout_.layout == TokenLayout::kRaw ? 0 : 1024;
  const int64_t width = layout_.layout == TokenLayout::kLlama3 ? 4 : 2;
  EXPECT_EQ(error_message<CorruptInputError>([&] { file.copy(1, 2, 65535, out.data()); }),
            folder_ / layout_.name + ": byte " + std::to_string(header + 2 * width) +
                ": has the token 65535, but the vocabulary has 65535 tokens, 0..65534");
}

TEST_P(TokenLayouts, NoCutIsMissed) {
  for (size_t length = 0; length < layout_.bytes.size(); ++length) {
    const std::string message = error(layout_.bytes.substr(0, length));
    const bool holds_tokens = layout_.layout == TokenLayout::kRaw && length > 0 && length % 2 == 0;
    EXPECT_EQ(message == "nothing was thrown", holds_tokens) << length;
    EXPECT_TRUE(holds_tokens || message.starts_with("byte ")) << length << message;
  }
}

class TokenHeaders : public TokenLayouts {};

TEST_P(TokenHeaders, HaveEveryFieldChecked) {
  for (const size_t at : {0, 1, 2, 3, 4, 7, 8, 11}) {
    std::string damaged = layout_.bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    const std::string expected = at < 4   ? "byte 0: has neither of the magic numbers 20240520 and 20240801"
                                 : at < 8 ? "byte 4: has the version "
                                          : "byte 8: the header counts ";
    EXPECT_TRUE(error(damaged).starts_with(expected)) << at << error(damaged);
  }
  std::string unused = layout_.bytes;
  unused[12] = unused[1023] = 1;
  EXPECT_EQ(error(unused), "nothing was thrown");
  EXPECT_TRUE(error(layout_.bytes + std::string(4, '\0')).starts_with("byte 8: the header counts 3 tokens, but "));
}

INSTANTIATE_TEST_SUITE_P(All, TokenLayouts, ::testing::Values(0, 1, 2));
INSTANTIATE_TEST_SUITE_P(All, TokenHeaders, ::testing::Values(1, 2));

TEST(TokenFile, DamageIsToldInFull) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& name, const std::string& bytes) {
    const std::string path = folder.write(name, bytes);
    const std::string message = error_message<CorruptInputError>([&] { TokenFile{path}; });
    return message.substr(message.find(": ") + 2);
  };
  EXPECT_EQ(error("train.bin", ""), "byte 0: the file ends before its first token");
  EXPECT_EQ(error("train.bin", "abc"), "byte 3: the file ends within a token of 2 bytes");
  EXPECT_EQ(error("x_train.bin", "abcd"),
            "byte 0: has neither of the magic numbers 20240520 and 20240801 of llm.c's token files; files without a "
            "header must be named train.bin and val.bin");
  EXPECT_EQ(error("val.bin", gpt2_file({1}).substr(0, 500)), "byte 500: the file ends within its header of 1024 bytes");
  EXPECT_EQ(error("val.bin", token_header(20240520, 7, 1) + "ab"),
            "byte 4: has the version 7, but tokens with the magic number 20240520 have 1");
  EXPECT_EQ(error("val.bin", token_header(20240520, 1, -1) + "ab"),
            "byte 8: the header counts -1 tokens, but 1 follow it");
  EXPECT_EQ(error("val.bin", token_header(20240801, 7, 1) + "ab"),
            "byte 1026: the file ends within a token of 4 bytes");
  EXPECT_EQ(error("val.bin", gpt2_file({})), "byte 1024: the file ends before its first token");
}

TEST(TokenFolder, HashesAndReadsAllFiles) {
  const TemporaryFolder folder;
  folder.write("a_train_0.bin", gpt2_file({1, 2, 3}));
  folder.write("a_train_1.bin", gpt2_file({4}));
  folder.write("a_val_0.bin", gpt2_file({5, 6}));
  const auto open = [&] { return TokenFolder(folder.path().string()); };
  EXPECT_EQ(open().greatest_token(), 6);
  EXPECT_EQ(tokens_of(open().training().at(1)), std::vector<int64_t>{4});
  const uint64_t hash = open().content_hash();
  EXPECT_EQ(open().content_hash(), hash);
  for (const std::string name : {"a_train_0.bin", "a_train_1.bin", "a_val_0.bin"}) {
    const std::string whole = files::read_file(folder / name);
    std::string other = whole;
    other.back() = 1;
    folder.write(name, other);
    EXPECT_NE(open().content_hash(), hash) << name;
    EXPECT_EQ(open().greatest_token() > 6, true) << name;
    folder.write(name, whole);
  }
}

TEST(TokenFolder, FilesOfOneFolderHaveOneLayout) {
  const TemporaryFolder folder;
  folder.write("train.bin", gpt2_file({1, 2}));
  folder.write("val.bin", bytes_of<uint16_t>({1, 2}));
  EXPECT_EQ(error_message<CorruptInputError>([&] { TokenFolder{folder.path().string()}; }),
            folder / "val.bin" + ": byte 0: has no header, but " + folder / "train.bin" +
                " has llm.c's header for GPT-2's tokens");
}

// The tokens of a segment of a text.
std::vector<uint16_t> tokens_in(const TextCorpus& corpus, const TextSegment& segment) {
  const auto begin = corpus.tokens().begin();
  return {begin + segment.begin, begin + segment.end};
}

// A text in which every segment is a separate file: the same samples under the same numbers.
TEST(TokenDataset, SamplesAreThoseOfTheSameText) {
  const TextDataset text = small_text();
  const TemporaryFolder folder;
  int number = 0;
  for (const auto& [part, segments] : {std::pair{"train", text.split().training}, {"val", text.split().held_out}}) {
    for (const TextSegment& segment : segments) {
      folder.write(c10::str("verse_", part, "_", 100 + number++, ".bin"), gpt2_file(tokens_in(text.corpus(), segment)));
    }
  }
  EXPECT_GT(number, 2);
  const TokenDataset tokens(TokenFolder(folder.path().string()),
                            {.context = kSmallContext, .vocabulary_size = text.corpus().vocabulary().size()});
  ASSERT_EQ(tokens.training_size(), text.training_size());
  ASSERT_EQ(tokens.held_out_size(), text.held_out_size());
  const std::vector<int64_t> training = range(0, text.training_size());
  EXPECT_TRUE(tokens.training_batch(training).inputs.equal(text.training_batch(training).inputs));
  EXPECT_TRUE(tokens.training_batch(training).targets.equal(text.training_batch(training).targets));
  const std::vector<int64_t> held_out = range(0, text.held_out_size());
  EXPECT_TRUE(tokens.held_out_batch(held_out).inputs.equal(text.held_out_batch(held_out).inputs));
  EXPECT_TRUE(tokens.held_out_batch(held_out).targets.equal(text.held_out_batch(held_out).targets));
  EXPECT_EQ(text.class_bound(), text.corpus().vocabulary().size());
}

class SmallTokens : public ::testing::Test {
 protected:
  SmallTokens() {
    folder.write("train.bin", bytes_of<uint16_t>({10, 11, 12, 13}));
    folder.write("val.bin", bytes_of<uint16_t>({20, 21, 22, 23, 24, 25}));
  }
  TokenDataset open(const TokenOptions& options) const {
    return TokenDataset(TokenFolder(folder.path().string()), options);
  }
  const TemporaryFolder folder;
};

TEST_F(SmallTokens, TargetsAreTheNextTokens) {
  const TokenDataset tokens = open({.context = 2, .vocabulary_size = kAllUint16});
  EXPECT_EQ(tokens.training_size(), 2);
  EXPECT_EQ(tokens.held_out_size(), 2);
  const models::Batch batch = tokens.training_batch({1, 0});
  EXPECT_TRUE(batch.inputs.equal(at::tensor({11, 12, 10, 11}, at::kLong).view({2, 2})));
  EXPECT_TRUE(batch.targets.equal(at::tensor({12, 13, 11, 12}, at::kLong).view({2, 2})));
  EXPECT_TRUE(tokens.held_out_batch({1}).targets.equal(at::tensor({23, 24}, at::kLong).view({1, 2})));
}

TEST_F(SmallTokens, AContextThatNoFileHoldsIsNamed) {
  EXPECT_NO_THROW(open({.context = 3, .vocabulary_size = kAllUint16}));
  EXPECT_EQ(error_message<c10::ValueError>([&] { open({.context = 4, .vocabulary_size = kAllUint16}); }),
            folder.path().string() + ": none of its training files has more tokens than context = 4");
  folder.write("val.bin", bytes_of<uint16_t>({20}));
  EXPECT_EQ(error_message<c10::ValueError>([&] { open({.context = 1, .vocabulary_size = kAllUint16}); }),
            folder.path().string() + ": none of its validation files has more tokens than context = 1");
  EXPECT_EQ(error_message<c10::ValueError>([&] { open({.context = 0, .vocabulary_size = kAllUint16}); }),
            "context must be in 1..4294967296, but is 0");
}

TEST_F(SmallTokens, OnlyWhatIsReadIsComparedWithTheVocabulary) {
  const TokenDataset tokens = open({.context = 1, .vocabulary_size = 12});
  EXPECT_EQ(tokens.class_bound(), 12);
  EXPECT_NO_THROW(tokens.training_batch({0}));
  EXPECT_EQ(error_message<CorruptInputError>([&] { tokens.training_batch({1}); }),
            folder / "train.bin" + ": byte 4: has the token 12, but the vocabulary has 12 tokens, 0..11");
  EXPECT_THROW(tokens.training_batch({3}), c10::ValueError);
  EXPECT_THROW(tokens.held_out_batch({}), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast::data
