// Windows of a text as samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/train/data/dataset.h"
#include "trainer/train/data/text_corpus.h"

namespace narrowcast::data {

// The start of a window: a token of a segment.
struct WindowStart {
  size_t segment = 0;
  int64_t offset = 0;
};

// Windows of context + 1 tokens, each within one of several segments. The first begins at a segment's first token;
// further ones begin every `stride` tokens as long as they fit. They are numbered from 0, segment by segment.
class Windows {
 public:
  struct Options {
    int64_t context = 1;  // >= 1
    int64_t stride = 1;   // >= 1
  };

  // `lengths`: the segments' lengths in tokens.
  Windows(const std::vector<int64_t>& lengths, const Options& options);

  // The number of windows, >= 0.
  int64_t size() const { return totals_.empty() ? 0 : totals_.back(); }

  // The starts of the windows with the given indices. Throws as check_indices does.
  std::vector<WindowStart> starts(at::IntArrayRef indices) const;

 private:
  int64_t stride_;
  std::vector<int64_t> totals_;  // windows in the segments up to and including each one
};

// int64 [B, context + 1] windows as a batch: inputs are the first context tokens, targets the last context ones.
models::Batch batch_of_windows(const at::Tensor& windows);

// Throws c10::ValueError for context not in 1..2^32.
void check_context(int64_t context);

// A section of the text: characters begin..end-1.
struct TextSegment {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TextSegment&) const = default;
};

// The characters for training, and the held-out ones.
struct TextSplit {
  int64_t block_characters = 0;
  std::vector<TextSegment> training;
  std::vector<TextSegment> held_out;
};

// Holds out every tenth block of a text, so that the held-out part is spread over the whole text. Blocks have 4096
// characters, or a twentieth of a shorter text, but always at least context + 1. Blocks 9, 19, 29, ... are held out,
// and the sections between them are the training segments. A text of fewer than ten blocks has its last block held out.
// The result depends only on the two lengths. `name` is the text's name in messages. Throws c10::ValueError for context
// not in 1..2^32, and naming both lengths unless both parts have a segment longer than the context.
TextSplit split_text(int64_t characters, int64_t context, const std::string& name);

// Samples are windows of context + 1 characters: inputs are the first context ones, targets the last context ones, both
// int64 [B, context]. Training sample i is the window at the i-th start at which a window fits into a training segment,
// so windows overlap, but none crosses the border to held-out text. Held-out samples follow each other without overlap
// of their targets, from the start of each held-out segment; the rest at a segment's end is not used.
class TextDataset : public Dataset {
 public:
  // Throws c10::ValueError as split_text does.
  TextDataset(TextCorpus corpus, int64_t context);

  const TextCorpus& corpus() const { return corpus_; }
  const TextSplit& split() const { return split_; }

  int64_t training_size() const override { return training_.size(); }
  int64_t held_out_size() const override { return held_out_.size(); }
  models::Batch training_batch(at::IntArrayRef indices) const override;
  models::Batch held_out_batch(at::IntArrayRef indices) const override;
  std::optional<int64_t> class_bound() const override;

 private:
  models::Batch batch(const std::vector<TextSegment>& segments, const std::vector<WindowStart>& starts) const;

  TextCorpus corpus_;
  int64_t context_;
  TextSplit split_;
  Windows training_;
  Windows held_out_;
};

}  // namespace narrowcast::data
