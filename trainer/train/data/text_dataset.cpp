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
constexpr int64_t kHeldOutInterval = 10;  // of this number of blocks, one is held out

// Holds out the blocks interval-1, 2 * interval-1, ... of the text.
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

std::vector<int64_t> lengths_of(const std::vector<TextSegment>& segments) {
  std::vector<int64_t> lengths;
  for (const TextSegment& segment : segments) {
    lengths.push_back(segment.end - segment.begin);
  }
  return lengths;
}

}  // namespace

Windows::Windows(const std::vector<int64_t>& lengths, const Options& options) : stride_(options.stride) {
  int64_t total = 0;
  for (const int64_t length : lengths) {
    total += length > options.context ? (length - options.context - 1) / stride_ + 1 : 0;
    totals_.push_back(total);
  }
}

std::vector<WindowStart> Windows::starts(at::IntArrayRef indices) const {
  check_indices(indices, size());
  std::vector<WindowStart> starts;
  for (const int64_t index : indices) {
    const auto segment = static_cast<size_t>(std::ranges::upper_bound(totals_, index) - totals_.begin());
    const int64_t before = segment == 0 ? 0 : totals_[segment - 1];
    starts.push_back({.segment = segment, .offset = (index - before) * stride_});
  }
  return starts;
}

models::Batch batch_of_windows(const at::Tensor& windows) {
  return {windows.slice(1, 0, windows.size(1) - 1), windows.slice(1, 1)};
}

void check_context(int64_t context) {
  TORCH_CHECK_VALUE(context >= 1 && context <= kLongestContext, "context must be in 1..", kLongestContext, ", but is ",
                    context);
}

TextSplit split_text(int64_t characters, int64_t context, const std::string& name) {
  check_context(context);
  const int64_t block = std::max(context + 1, std::min(kBlockCharacters, characters / kLeastBlocks));
  TextSplit split;
  if (characters >= kHeldOutInterval * block) {
    split = split_in_blocks(characters, block);
  } else {
    const int64_t border = std::max<int64_t>(0, characters - block);
    split = {.block_characters = block, .training = {{0, border}}, .held_out = {{border, characters}}};
  }
  TORCH_CHECK_VALUE(
      has_window(split.training, context) && has_window(split.held_out, context), name, ": its ", characters,
      " characters are too few for context ", context,
      ": the training part and the held-out part must each be longer than the context, which needs at least ",
      2 * (context + 1), " characters");
  return split;
}

TextDataset::TextDataset(TextCorpus corpus, int64_t context)
    : corpus_(std::move(corpus)),
      context_(context),
      split_(split_text(corpus_.characters(), context, corpus_.name())),
      training_(lengths_of(split_.training), {.context = context, .stride = 1}),
      held_out_(lengths_of(split_.held_out), {.context = context, .stride = context}) {}

models::Batch TextDataset::training_batch(at::IntArrayRef indices) const {
  return batch(split_.training, training_.starts(indices));
}

models::Batch TextDataset::held_out_batch(at::IntArrayRef indices) const {
  return batch(split_.held_out, held_out_.starts(indices));
}

std::optional<int64_t> TextDataset::class_bound() const { return int64_t{std::ranges::max(corpus_.tokens())} + 1; }

models::Batch TextDataset::batch(const std::vector<TextSegment>& segments,
                                 const std::vector<WindowStart>& starts) const {
  const at::Tensor windows = at::empty({static_cast<int64_t>(starts.size()), context_ + 1}, at::kLong);
  int64_t* out = windows.mutable_data_ptr<int64_t>();
  for (const WindowStart& start : starts) {
    const int64_t begin = segments[start.segment].begin + start.offset;
    const auto window = corpus_.tokens().subspan(static_cast<size_t>(begin), static_cast<size_t>(context_ + 1));
    out = std::copy(window.begin(), window.end(), out);
  }
  return batch_of_windows(windows);
}

}  // namespace narrowcast::data
