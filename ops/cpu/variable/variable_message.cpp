#include "ops/cpu/variable/variable_message.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace narrowcast::cpu {
namespace {

using codec::wire::kGreatestStep;
using codec::wire::kLeastStep;
using codec::wire::kStepBytes;
using codec::wire::kVariableBlock;
using codec::wire::kWordBytes;
using codec::wire::StepCodes;

// The distance of two neighbouring steps, in the bits of a float32.
constexpr uint32_t kUnit = codec::wire::kScaleUnit;
constexpr int64_t kPatternsOfOctave = (int64_t{1} << 23) / kUnit;

// If a message has at least this many blocks, its step is first estimated from every kSampleStride-th grain.
constexpr int64_t kSampledBlocks = 8192;
constexpr int64_t kSampleStride = 16;

// Stands for the size of a message whose largest magnitude has no code.
constexpr int64_t kNoCodes = std::numeric_limits<int64_t>::max();

// A step and the bytes of its codes.
struct Tried {
  int64_t step;
  int64_t bytes;
};

// The state of the search for a step.
struct StepSearch {
  int64_t low;
  int64_t high;  // This step fits.
  int64_t guess;
  double bytes_per_step;  // The decrease in bytes from one step to the next.

  // Searches until the step is found. The result is that of least_step for steps whose codes take at most `bytes`; this
  // search is for expensive counts. It extrapolates from the last two steps that were tried; if that is impossible, it
  // halves the range.
  template <class Count>
  uint16_t least(int64_t bytes, const Count& count) {
    constexpr int kMostGuesses = 8;
    std::optional<Tried> before;
    for (int guesses = 0; low < high; ++guesses) {
      guess = std::clamp(guess, low, high - 1);
      const Tried tried{guess, count(static_cast<uint16_t>(guess))};
      (tried.bytes <= bytes ? high : low) = tried.bytes <= bytes ? guess : guess + 1;
      const bool is_known = tried.bytes != kNoCodes;
      if (is_known && before.has_value() && before->bytes != tried.bytes) {
        bytes_per_step =
            static_cast<double>(before->bytes - tried.bytes) / static_cast<double>(tried.step - before->step);
      }
      before = is_known ? tried : before;
      const bool guessing = is_known && bytes_per_step > 0 && guesses < kMostGuesses;
      const double distance = guessing ? std::ceil(static_cast<double>(tried.bytes - bytes) / bytes_per_step) : 0;
      guess = guessing ? guess + static_cast<int64_t>(std::clamp(distance, -65536.0, 65536.0)) : low + (high - low) / 2;
    }
    return static_cast<uint16_t>(high);
  }
};

}  // namespace

VariableWriter::VariableWriter(int bits_per_element, const Rounding& rounding, int64_t n, uint8_t* bytes)
    : layout_(codec::wire::variable_layout(bits_per_element, n)), rounding_(rounding), bytes_(bytes) {
  const int64_t grains = whole_grains(layout_.blocks);
  // Not initialised: all elements except the padding are measured.
  extents_ = std::make_unique_for_overwrite<BlockExtent[]>(static_cast<size_t>(grains * kGrainBlocks));
  std::fill(extents_.get() + layout_.blocks, extents_.get() + grains * kGrainBlocks, BlockExtent{});
  byte_of_grain_.resize(static_cast<size_t>(grains) + 1);
}

uint16_t VariableWriter::find_step() const {
  const uint32_t largest = variable_largest(extents_.get(), layout_.blocks);
  if (largest > codec::wire::kGreatestMagnitudeBits) {
    return codec::wire::kNanScale;
  }
  // Lower steps have no code for the largest magnitude; with `high` and higher steps all blocks are faint or zeros.
  const auto pattern = [](double value) { return codec::float_bits(static_cast<float>(value)) / kUnit; };
  const double magnitude = codec::float_of_bits(largest);
  const auto bounded = [](uint32_t step) { return std::clamp<uint32_t>(step, kLeastStep, kGreatestStep); };
  const int64_t high = bounded(largest / kUnit + 3);
  const int64_t low = std::min<int64_t>(high, bounded(pattern(magnitude / 0x1p16)));
  const auto bytes_of = [&](uint16_t step, int64_t stride) {
    const StepCodes codes = StepCodes::of(step, rounding_);
    return codes.has_code(codec::float_of_bits(largest) * codes.inverse)
               ? variable_bytes(extents_.get(), layout_.blocks, stride, codes)
               : kNoCodes;
  };
  // A step of twice the size, kPatternsOfOctave patterns higher, saves a word in each block that has any. The steps of
  // gradients are mostly about 2 octaves farther below their largest number than a block has words.
  const auto bytes_per_step = static_cast<double>(layout_.blocks * kWordBytes) / kPatternsOfOctave;
  const int64_t words = layout_.code_bytes / (layout_.blocks * kWordBytes);
  StepSearch search{low, high, high - (words + 3) * kPatternsOfOctave, bytes_per_step};
  if (layout_.blocks >= kSampledBlocks) {
    StepSearch in_sample{low, high, search.guess, bytes_per_step / kSampleStride};
    search.guess = in_sample.least(layout_.code_bytes / kSampleStride,
                                   [&](uint16_t step) { return bytes_of(step, kSampleStride); });
    search.bytes_per_step = in_sample.bytes_per_step * kSampleStride;
  }
  return search.least(layout_.code_bytes, [&](uint16_t step) { return bytes_of(step, 1); });
}

void VariableWriter::settle() {
  if (layout_.blocks == 0) {
    return;
  }
  const uint16_t step = find_step();
  is_nan_ = step == codec::wire::kNanScale;
  bytes_[0] = static_cast<uint8_t>(step);
  bytes_[1] = static_cast<uint8_t>(step >> 8);
  int64_t written = kStepBytes;
  if (!is_nan_) {
    const StepCodes codes = StepCodes::of(step, rounding_);
    variable_headers(extents_.get(), layout_.blocks, codes, bytes_ + kStepBytes);
    variable_offsets(bytes_ + kStepBytes, layout_.blocks, byte_of_grain_.data());
    written = layout_.first_code + byte_of_grain_.back();
  }
  std::fill(bytes_ + written, bytes_ + layout_.bytes, uint8_t{0});
}

VariableGrains VariableWriter::grains_from(int64_t first) const {
  return {step(), bytes_ + kStepBytes + first / kVariableBlock, byte_of_grain_.data() + first / kWireGrain,
          bytes_ + layout_.first_code};
}

void VariableWriter::read_back(int64_t first, int64_t n, float* out) const {
  if (n == 0) {
    return;  // An empty message has no step.
  }
  const codec::wire::VariableMessage message{step(), bytes_ + kStepBytes, bytes_ + layout_.first_code,
                                             layout_.code_bytes};
  variable_decode({message, byte_of_grain_.data()}, first, {out, n});
}

VariableReader::VariableReader(int bits_per_element, const uint8_t* bytes, int64_t n) {
  if (n > 0) {
    const int64_t blocks = codec::wire::variable_layout(bits_per_element, n).blocks;
    message_ = codec::wire::variable_message(bits_per_element, bytes, n);
    byte_of_grain_.resize(static_cast<size_t>(whole_grains(blocks)) + 1);
    variable_offsets(message_.headers, blocks, byte_of_grain_.data());
  }
}

VariableRankReader::VariableRankReader(int bits_per_element, const std::vector<const uint8_t*>& messages, int64_t n,
                                       Reduction reduction)
    : reduction_(reduction) {
  for (const uint8_t* const message : messages) {
    readers_.emplace_back(bits_per_element, message, message == nullptr ? 0 : n);
    sources_.push_back(readers_.back().source());
  }
  for (size_t r = 0; r < messages.size(); ++r) {
    source_of_rank_.push_back(messages[r] == nullptr ? nullptr : &sources_[r]);
  }
}

}  // namespace narrowcast::cpu
