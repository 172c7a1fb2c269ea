#include "trainer/train/data/text_dataset.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include <narrowcast/char_gpt.h>
#include "ops/common/text.h"
#include "tests/support/error_message.h"
#include "trainer/train/data/text_corpus.h"

namespace narrowcast::data {
namespace {

using narrowcast::testing::error_message;

// A text of `length` characters in which every window of two characters encodes its place (up to 90 * 90).
std::string positions_text(int64_t length) {
  std::string text;
  for (int64_t i = 0; text.size() < static_cast<size_t>(length); ++i) {
    text.push_back(static_cast<char>('!' + i % 90));
    text.push_back(static_cast<char>('!' + i / 90 % 90));
  }
  text.resize(static_cast<size_t>(length));
  return text;
}

// The places of the text that are in any segment.
std::set<int64_t> places(const std::vector<TextSegment>& segments) {
  std::set<int64_t> covered;
  for (const TextSegment& segment : segments) {
    for (int64_t place = segment.begin; place < segment.end; ++place) {
      EXPECT_TRUE(covered.insert(place).second) << place << " is covered twice";
    }
  }
  return covered;
}

struct Lengths {
  int64_t characters;
  int64_t context;
};

class TextSplitLengths : public ::testing::TestWithParam<Lengths> {};

TEST_P(TextSplitLengths, PartsAreDisjointAndMakeUpTheText) {
  const auto [characters, context] = GetParam();
  const TextSplit split = split_text(characters, context, "text");
  const std::set<int64_t> training = places(split.training);
  const std::set<int64_t> held_out = places(split.held_out);
  EXPECT_EQ(static_cast<int64_t>(training.size() + held_out.size()), characters);
  for (const int64_t place : held_out) {
    EXPECT_FALSE(training.contains(place));
  }
  EXPECT_GT(split.block_characters, context);
  EXPECT_LE(split.block_characters, std::max<int64_t>(4096, context + 1));
}

INSTANTIATE_TEST_SUITE_P(Lengths, TextSplitLengths,
                         ::testing::Values(Lengths{4, 1}, Lengths{18, 8}, Lengths{19, 8}, Lengths{89, 8},
                                           Lengths{90, 8}, Lengths{91, 8}, Lengths{1000, 8}, Lengths{1000, 128},
                                           Lengths{81919, 64}, Lengths{81920, 64}, Lengths{100000, 5000}));

TEST(TextSplit, EveryTenthBlockIsHeldOut) {
  const TextSplit split = split_text(100000, 64, "text");  // 24 blocks of 4096 and a rest
  EXPECT_EQ(split.block_characters, 4096);
  EXPECT_EQ(split.training, std::vector<TextSegment>({{0, 9 * 4096}, {10 * 4096, 19 * 4096}, {20 * 4096, 100000}}));
  EXPECT_EQ(split.held_out, std::vector<TextSegment>({{9 * 4096, 10 * 4096}, {19 * 4096, 20 * 4096}}));
}

TEST(TextSplit, AShorterTextHasBlocksOfATwentieth) {
  const TextSplit split = split_text(2000, 64, "text");
  EXPECT_EQ(split.block_characters, 100);
  EXPECT_EQ(split.held_out, std::vector<TextSegment>({{900, 1000}, {1900, 2000}}));
}

TEST(TextSplit, AVeryShortTextHasItsEndHeldOut) {
  const TextSplit split = split_text(200, 64, "text");
  EXPECT_EQ(split.training, std::vector<TextSegment>({{0, 135}}));
  EXPECT_EQ(split.held_out, std::vector<TextSegment>({{135, 200}}));
}

TEST(TextSplit, ATextTooShortForTheContextNamesBoth) {
  EXPECT_EQ(error_message<c10::ValueError>([] { split_text(129, 64, "book.txt"); }),
            "book.txt: its 129 characters are too few for context 64: the training part and the held-out part must "
            "each be longer than the context, which needs at least 130 characters");
  EXPECT_NO_THROW(split_text(130, 64, "book.txt"));
  EXPECT_THROW(split_text(1, 64, "book.txt"), c10::ValueError);
  EXPECT_EQ(error_message<c10::ValueError>([] { split_text(100, 0, "book.txt"); }),
            "context must be in 1..4294967296, but is 0");
  EXPECT_THROW(split_text(100, INT64_MAX, "book.txt"), c10::ValueError);
}

class TextWindows : public ::testing::Test {
 protected:
  static constexpr int64_t kContext = 16;

  std::vector<int64_t> all(int64_t size) const {
    std::vector<int64_t> indices(static_cast<size_t>(size));
    std::iota(indices.begin(), indices.end(), 0);
    return indices;
  }

  // inputs and the last target as the window's text, for each sample of a batch.
  std::vector<std::string> windows(const models::Batch& batch) const {
    std::vector<std::string> texts;
    for (int64_t row = 0; row < batch.inputs.size(0); ++row) {
      texts.push_back(dataset_.corpus().vocabulary().decode(
          at::cat({batch.inputs[row], batch.targets[row].slice(0, kContext - 1)})));
    }
    return texts;
  }

  std::string text_ = positions_text(3001);
  TextDataset dataset_{TextCorpus(decode_utf8(text_).code_points, "text"), kContext};
};

TEST_F(TextWindows, TrainingSamplesAreEveryWindowOfEverySegmentInOrder) {
  std::vector<std::string> expected;
  for (const auto& [begin, end] : dataset_.split().training) {
    for (int64_t start = begin; start + kContext + 1 <= end; ++start) {
      expected.push_back(text_.substr(static_cast<size_t>(start), kContext + 1));
    }
  }
  EXPECT_EQ(dataset_.training_size(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(windows(dataset_.training_batch(all(dataset_.training_size()))), expected);
}

TEST_F(TextWindows, HeldOutSamplesFollowEachOther) {
  std::vector<std::string> expected;
  for (const auto& [begin, end] : dataset_.split().held_out) {
    for (int64_t start = begin; start + kContext + 1 <= end; start += kContext) {
      expected.push_back(text_.substr(static_cast<size_t>(start), kContext + 1));
    }
  }
  EXPECT_EQ(dataset_.held_out_size(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(windows(dataset_.held_out_batch(all(dataset_.held_out_size()))), expected);
}

TEST_F(TextWindows, TargetsAreTheInputsOneCharacterLater) {
  const models::Batch batch = dataset_.training_batch({0, 7, dataset_.training_size() - 1});
  EXPECT_EQ(batch.inputs.sizes(), at::IntArrayRef({3, kContext}));
  EXPECT_EQ(batch.inputs.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.inputs.slice(1, 1).equal(batch.targets.slice(1, 0, kContext - 1)));
}

TEST_F(TextWindows, IndicesAreChecked) {
  EXPECT_THROW(dataset_.training_batch({dataset_.training_size()}), c10::ValueError);
  EXPECT_THROW(dataset_.held_out_batch({-1}), c10::ValueError);
  EXPECT_THROW(dataset_.training_batch({}), c10::ValueError);
}

TEST_F(TextWindows, BatchesFitTheModel) {
  models::CharGpt model({.layers = 1,
                         .heads = 1,
                         .width = 8,
                         .context = kContext,
                         .vocabulary_size = dataset_.corpus().vocabulary().size()});
  EXPECT_TRUE(model.forward(dataset_.training_batch({0, 1})).isfinite().item<bool>());
}

TEST(TextDataset, AShortestTextHasOneSampleEach) {
  const TextDataset dataset(TextCorpus(U"abcdefgh", "text"), 3);
  EXPECT_EQ(dataset.training_size(), 1);
  EXPECT_EQ(dataset.held_out_size(), 1);
}

TEST(TextDataset, HoldsOutATenthOfRealText) {
  const TextDataset dataset(TextCorpus::from_paths({default_text_path()}), 64);
  // A tenth of the text is held out, in blocks; the last stretch is in either part.
  const double share =
      static_cast<double>(dataset.held_out_size() * 64) / static_cast<double>(dataset.corpus().characters());
  EXPECT_GT(share, 0.05);
  EXPECT_LT(share, 0.15);
}

}  // namespace
}  // namespace narrowcast::data
