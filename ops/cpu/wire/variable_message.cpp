#include "ops/cpu/wire/variable_message.h"

#include <algorithm>
#include <cstring>

namespace narrowcast::cpu {
namespace {

using codec::wire::kGreatestStep;
using codec::wire::kLeastStep;
using codec::wire::kStepBytes;
using codec::wire::kVariableBlock;
using codec::wire::kWordBytes;
using codec::wire::least_step;
using codec::wire::StepCodes;

// From one step to the next, in the bits of a float32.
constexpr uint32_t kUnit = codec::wire::kScaleUnit;

// Of a long array every so many grains are looked at for a first guess.
constexpr int64_t kGrainsPerSample = 16;
constexpr int64_t kLeastGrainsToSample = 16 * kGrainsPerSample;

// As least_step, for fits() that cost much: from a guess that is near, in steps that double.
template <class Fits>
uint16_t least_step_near(uint16_t guess, uint16_t low, uint16_t high, const Fits& fits) {
  int distance = 1;
  if (fits(guess)) {
    high = guess;
    while (high > low && fits(static_cast<uint16_t>(std::max<int>(low, high - distance)))) {
      high = static_cast<uint16_t>(std::max<int>(low, high - distance));
      distance *= 2;
    }
    low = static_cast<uint16_t>(std::max<int>(low, high - distance + 1));
  } else {
    low = static_cast<uint16_t>(guess + 1);
    while (low < high && !fits(static_cast<uint16_t>(std::min<int>(high, low + distance - 1)))) {
      low = static_cast<uint16_t>(std::min<int>(high, low + distance));
      distance *= 2;
    }
    high = static_cast<uint16_t>(std::min<int>(high, low + distance - 1));
  }
  return least_step(low, high, fits);
}

// The words that a sample of the blocks takes, and how many a message has for as many.
struct Sample {
  const uint32_t* largest;
  int64_t grains;  // Whole ones.

  int64_t words(const StepCodes& codes) const {
    int64_t sum = 0;
    for (int64_t i = 0; i < grains; i += kGrainsPerSample) {
      sum += variable_words(largest + i * kGrainBlocks, kGrainBlocks, codes);
    }
    return sum * kGrainsPerSample;
  }
};

}  // namespace

VariableWriter::VariableWriter(int bits_per_element, const Rounding& rounding, int64_t n, uint8_t* bytes)
    : layout_(codec::wire::variable_layout(bits_per_element, n)), rounding_(rounding), bytes_(bytes) {
  const int64_t grains = whole_grains(layout_.blocks);
  largest_.reset(new uint32_t[static_cast<size_t>(grains * kGrainBlocks)]);  // Not set: all but the last are measured.
  std::fill(largest_.get() + layout_.blocks, largest_.get() + grains * kGrainBlocks, 0U);
  word_of_grain_.resize(static_cast<size_t>(grains) + 1);
}

uint16_t VariableWriter::find_step() const {
  const uint32_t* const all = largest_.get();
  const uint32_t largest = *std::max_element(all, all + layout_.blocks);
  if (largest > codec::wire::kGreatestMagnitudeBits) {
    return codec::wire::kNanScale;
  }
  // Steps below have no code for the largest magnitude; with this one and those above all codes are 0, 1 and -1.
  const auto pattern = [](double value) { return codec::float_bits(static_cast<float>(value)) / kUnit; };
  const double magnitude = codec::float_of_bits(largest);
  const auto bounded = [](uint32_t step) {
    return static_cast<uint16_t>(std::clamp<uint32_t>(step, kLeastStep, kGreatestStep));
  };
  const uint16_t high = bounded(largest / kUnit + 2);
  const uint16_t low = std::min(high, bounded(pattern(magnitude / 0x1p16)));
  const auto fits = [&](uint16_t step, const auto& words) {
    const StepCodes codes{codec::wire::inverse_scale(step), rounding_.stochastic};
    return codes.has_code(codec::float_of_bits(largest) * codes.inverse) && words(codes) <= layout_.words;
  };
  const auto fits_all = [&](uint16_t step) {
    return fits(step, [&](const StepCodes& codes) { return variable_words(all, layout_.blocks, codes); });
  };
  const Sample sample{all, layout_.blocks / kGrainBlocks};
  if (sample.grains < kLeastGrainsToSample) {
    return least_step(low, high, fits_all);
  }
  const uint16_t guess = least_step(low, high, [&](uint16_t step) {
    return fits(step, [&](const StepCodes& codes) { return sample.words(codes); });
  });
  return least_step_near(guess, low, high, fits_all);
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
    codes_ = {codec::wire::inverse_scale(step), rounding_.stochastic};
    variable_widths(largest_.get(), layout_.blocks, codes_, bytes_ + kStepBytes);
    variable_offsets(bytes_ + kStepBytes, layout_.blocks, word_of_grain_.data());
    written = layout_.first_word + word_of_grain_.back() * kWordBytes;
  }
  std::fill(bytes_ + written, bytes_ + layout_.bytes, uint8_t{0});
}

VariableWords VariableWriter::words_of(int64_t first, int64_t n) const {
  const auto grain = static_cast<size_t>(first / kWireGrain);
  const auto behind = static_cast<size_t>((first + n + kWireGrain - 1) / kWireGrain);
  uint8_t* const codes = bytes_ + layout_.first_word;
  return {bytes_ + kStepBytes + first / kVariableBlock / 2, codes + word_of_grain_[grain] * kWordBytes,
          codes + word_of_grain_[behind] * kWordBytes};
}

void VariableWriter::read_back(int64_t first, int64_t n, float* out) const {
  const auto step = static_cast<uint16_t>(bytes_[0] | bytes_[1] << 8);
  const codec::wire::VariableMessage message{codec::wire::scale_value(step), bytes_ + kStepBytes,
                                             bytes_ + layout_.first_word, layout_.words};
  variable_decode({message, word_of_grain_.data()}, first, n, out);
}

VariableReader::VariableReader(int bits_per_element, const uint8_t* bytes, int64_t n) {
  if (n > 0) {
    const int64_t blocks = codec::wire::variable_layout(bits_per_element, n).blocks;
    message_ = codec::wire::variable_message(bits_per_element, bytes, n);
    word_of_grain_.resize(static_cast<size_t>(whole_grains(blocks)) + 1);
    variable_offsets(message_.widths, blocks, word_of_grain_.data());
  }
}

}  // namespace narrowcast::cpu
