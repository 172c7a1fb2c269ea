#include "trainer/train/data/text_dataset.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace narrowcast::data {
namespace {

constexpr int64_t kBlockCharacters = 4096;
constexpr int64_t kLeastBlocks = 20;  // a shorter text gets smaller blocks, so that two are held out
constexpr int64_t kLongestContext = int64_t{1} << 32;
constexpr int64_t kHeldOutInterval = 10;  // one block of these many is held out

// Blocks interval-1, 2 * interval-1, ... of the text are held out.
TextSplit split_in_blocks(int64_t characters, int64_t block) {
  TextSplit split = {.block_characters = block, .training = {}, .held_out = {}};
  int64_t begin = 0;
  while (begin < characters) {
    const int64_t held_out_begin = std::min(characters, begin + (kHeldOutInterval - 1) * block);
    const int64_t held_out_end = std::min(characters, held_out_begin + block);
    split.training.push_back({begin, held_out_begin});
    if (held_out_begin < held_out_end) {
      split.held_out.push_back({held_out_begin, held_out_end});
    }
    begin = held_out_end;
  }
  return split;
}

bool has_window(const std::vector<TextSegment>& segments, int64_t context) {
  return std::any_of(segments.begin(), segments.end(),
                     [&](const TextSegment& segment) { return segment.end - segment.begin > context; });
}

// For each segment the samples up to its end, given the samples in a segment of some length.
template <class Count>
std::vector<int64_t> running_totals(const std::vector<TextSegment>& segments, const Count& count) {
  std::vector<int64_t> totals;
  int64_t total = 0;
  for (const TextSegment& segment : segments) {
    total += std::max<int64_t>(0, count(segment.end - segment.begin));
    totals.push_back(total);
  }
  return totals;
}

// First characters of the samples of the given indices, which are `stride` apart in each segment.
std::vector<int64_t> starts_of(at::IntArrayRef indices, const std::vector<TextSegment>& segments,
                               const std::vector<int64_t>& totals, int64_t stride) {
  check_indices(indices, totals.back());
  std::vector<int64_t> starts;
  for (const int64_t index : indices) {
    const auto segment = std::upper_bound(totals.begin(), totals.end(), index) - totals.begin();
    const int64_t before = segment == 0 ? 0 : totals[static_cast<size_t>(segment - 1)];
    starts.push_back(segments[static_cast<size_t>(segment)].begin + (index - before) * stride);
  }
  return starts;
}

}  // namespace

TextSplit split_text(int64_t characters, int64_t context, const std::string& name) {
  TORCH_CHECK_VALUE(context >= 1 && context <= kLongestContext, "context must be in 1..", kLongestContext, ", but is ",
                    context);
  const int64_t block = std::max(context + 1, std::min(kBlockCharacters, characters / kLeastBlocks));
  TextSplit split;
  if (characters >= kHeldOutInterval * block) {
    split = split_in_blocks(characters, block);
  } else {
    const int64_t border = std::max<int64_t>(0, characters - block);
    split = {.block_characters = block, .training = {{0, border}}, .held_out = {{border, characters}}};
  }
  TORCH_CHECK_VALUE(has_window(split.training, context) && has_window(split.held_out, context), name, ": its ",
                    characters, " characters are too few for context ", context,
                    ": the part to train on and the held-out part must each be longer than that, so it takes at least ",
                    2 * (context + 1), " characters");
  return split;
}

TextDataset::TextDataset(TextCorpus corpus, int64_t context)
    : corpus_(std::move(corpus)), context_(context), split_(split_text(corpus_.characters(), context, corpus_.name())) {
  training_ends_ = running_totals(split_.training, [&](int64_t length) { return length - context_; });
  held_out_ends_ = running_totals(split_.held_out, [&](int64_t length) { return (length - 1) / context_; });
}

models::Batch TextDataset::training_batch(at::IntArrayRef indices) const {
  return batch(starts_of(indices, split_.training, training_ends_, /*stride=*/1));
}

models::Batch TextDataset::held_out_batch(at::IntArrayRef indices) const {
  return batch(starts_of(indices, split_.held_out, held_out_ends_, /*stride=*/context_));
}

models::Batch TextDataset::batch(const std::vector<int64_t>& starts) const {
  const at::Tensor windows = at::empty({static_cast<int64_t>(starts.size()), context_ + 1}, at::kLong);
  int64_t* out = windows.mutable_data_ptr<int64_t>();
  for (const int64_t start : starts) {
    const auto window = corpus_.tokens().subspan(static_cast<size_t>(start), static_cast<size_t>(context_ + 1));
    out = std::copy(window.begin(), window.end(), out);
  }
  return {windows.slice(1, 0, context_), windows.slice(1, 1)};
}

}  // namespace narrowcast::data
