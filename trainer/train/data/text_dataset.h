// Windows of a text as samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/train/data/dataset.h"
#include "trainer/train/data/text_corpus.h"

namespace narrowcast::data {

// A stretch of the text: characters begin..end-1.
struct TextSegment {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TextSegment&) const = default;
};

// Which characters are trained on and which are held out.
struct TextSplit {
  int64_t block_characters = 0;
  std::vector<TextSegment> training;
  std::vector<TextSegment> held_out;
};

// Holds out every tenth block of a text, so that the held-out part is spread over all of it. Blocks have 4096
// characters, in a shorter text a twentieth of it, but always at least context + 1; the blocks 9, 19, 29, ... are
// held out, and the stretches between them are the training segments. A text of fewer than ten blocks has its last
// block held out. The result depends on nothing but the two lengths. `name` says in messages which text it is.
// Throws c10::ValueError for context not in 1..2^32, and naming both lengths unless both parts have a segment longer
// than the context.
TextSplit split_text(int64_t characters, int64_t context, const std::string& name);

// Samples are windows of context + 1 characters: inputs are the first context ones, targets the last context ones,
// both int64 [B, context]. Training sample i is the window at the i-th start at which a window fits into a training
// segment, so windows overlap but none crosses the border to held-out text. Held-out samples follow each other
// without overlap of their targets, from the start of each held-out segment; what is left at its end is not used.
class TextDataset : public Dataset {
 public:
  // Throws c10::ValueError as split_text does.
  TextDataset(TextCorpus corpus, int64_t context);

  const TextCorpus& corpus() const { return corpus_; }
  const TextSplit& split() const { return split_; }

  int64_t training_size() const override { return training_ends_.back(); }
  int64_t held_out_size() const override { return held_out_ends_.back(); }
  models::Batch training_batch(at::IntArrayRef indices) const override;
  models::Batch held_out_batch(at::IntArrayRef indices) const override;

 private:
  models::Batch batch(const std::vector<int64_t>& starts) const;

  TextCorpus corpus_;
  int64_t context_;
  TextSplit split_;
  // Samples in the segments up to and including each one.
  std::vector<int64_t> training_ends_;
  std::vector<int64_t> held_out_ends_;
};

}  // namespace narrowcast::data
