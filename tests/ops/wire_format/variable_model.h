// What docs/wire_format.md says of blocks of the variable formats, once more: in float64 and in its own terms, to
// compare the plain codec with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/codec/wire_rounding.h"
#include "tests/ops/wire_format/variable_inputs.h"

namespace narrowcast::test {

// Where a magnitude is among the powers of two, which are the whole numbers: between two of them it goes on evenly.
inline double octaves(double magnitude) {
  if (magnitude == 0) return -std::numeric_limits<double>::infinity();
  const int exponent = std::ilogb(magnitude);
  return exponent - 1 + std::ldexp(magnitude, -exponent);
}

inline double at_octaves(double octaves) {
  const double exponent = std::floor(octaves);
  return std::ldexp(1 + octaves - exponent, static_cast<int>(exponent));
}

inline constexpr double kLeastOctaves = -101;  // Blocks below it are zeros.
inline constexpr double kMostSixteenths = 15;  // That a header can say.
inline constexpr double kMostQuarters = 31;

// What the largest element of a block may be over the block's step: a 64th less than what no code of the width is for.
inline double most_of_width(int width, bool stochastic) {
  return std::ldexp(1, width - 1) - (stochastic ? 1 : 0.5) - 1.0 / 64;
}

// A number over a step: float64 holds the product of two float32.
inline float over(double number, double step) {
  const float inverse = 1 / static_cast<float>(step);
  return static_cast<float>(number * inverse);
}

// The code of such a number, which is element i of its message.
inline double model_code(float y, const codec::wire::Rounding& rounding, int64_t i) {
  if (!rounding.stochastic) return std::nearbyint(double{y});
  const double below = std::floor(double{y});
  const double part = std::trunc(static_cast<float>(y - below) * 0x1p24);
  return below + std::floor((part + (codec::wire::random_word(rounding, i) >> 8)) * 0x1p-24);
}

// A step, and how it rounds.
struct ModelStep {
  double step;
  bool stochastic;

  // The greatest that a number of this magnitude can have.
  double code(double magnitude) const {
    const double y = over(magnitude, step);
    return stochastic ? std::ceil(y) : std::nearbyint(y);
  }

  double least_octaves() const {
    return stochastic ? kLeastOctaves : std::max(kLeastOctaves, octaves(step) - kMostQuarters / 4);
  }

  // How many quarters of an octave the step of a faint block may be below.
  double most_quarters() const { return std::min(kMostQuarters, std::floor(4 * (octaves(step) - kLeastOctaves))); }
};

// A block, or what there is of it.
struct ModelBlock {
  int width = 0;
  int lower = 0;  // The halves of its header.
  int upper = 0;
  bool is_farthest = false;  // As far below the message's step as a faint block can be.
  double largest = 0;
  double own_step = 0;

  ModelBlock(const Floats& x, const ModelStep& step) {
    for (const float value : x) largest = std::max(largest, std::abs(double{value}));
    const double greatest = step.code(largest);
    if (greatest < 2 && octaves(largest) < step.least_octaves()) return;
    width = 2;
    while (std::ldexp(1, width - 1) <= greatest) ++width;
    const double needed = static_cast<float>(largest / most_of_width(width, step.stochastic));
    const double below = std::max(0.0, octaves(step.step) - octaves(needed));
    if (width > 2) {
      set_wide(std::min(kMostSixteenths, std::floor(16 * below)), step);
    } else {
      set_faint(std::min(step.most_quarters(), std::floor(4 * below)), step);
    }
  }

  int header() const { return 16 * upper + lower; }
  bool is_faint() const { return width == 2; }
  int64_t bytes() const { return int64_t{4} * width; }

 private:
  void set_wide(double sixteenths, const ModelStep& step) {
    lower = width;
    upper = static_cast<int>(sixteenths);
    own_step = at_octaves(octaves(step.step) - sixteenths / 16);
  }

  void set_faint(double quarters, const ModelStep& step) {
    lower = quarters > 15 ? 1 : 2;
    upper = static_cast<int>(quarters) % 16;
    own_step = at_octaves(octaves(step.step) - quarters / 4);
    is_farthest = quarters == step.most_quarters();
  }
};

inline std::vector<ModelBlock> model_blocks(const Floats& x, const ModelStep& step) {
  std::vector<ModelBlock> blocks;
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    const auto end = std::min(begin + 32, x.size());
    blocks.emplace_back(Floats(x.data() + begin, x.data() + end), step);
  }
  return blocks;
}

inline int64_t model_bytes(const Floats& x, const ModelStep& step) {
  int64_t bytes = 0;
  for (const ModelBlock& block : model_blocks(x, step)) bytes += block.bytes();
  return bytes;
}

}  // namespace narrowcast::test
