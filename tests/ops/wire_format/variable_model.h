// An independent model of blocks of the variable formats, from docs/reference/wire-format.md and in float64. The plain
// codec is compared with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/codec/wire_rounding.h"
#include "tests/ops/wire_format/variable_inputs.h"

namespace narrowcast::test {

// The position of a magnitude among the powers of two, which are the integers; linear between two of them.
inline double octaves(double magnitude) {
  if (magnitude == 0) return -std::numeric_limits<double>::infinity();
  const int exponent = std::ilogb(magnitude);
  return exponent - 1 + std::ldexp(magnitude, -exponent);
}

inline double at_octaves(double octaves) {
  const double exponent = std::floor(octaves);
  return std::ldexp(1 + octaves - exponent, static_cast<int>(exponent));
}

inline constexpr double kLeastOctaves = -101;  // Blocks below this are zeros.
inline constexpr int kMostQuarters = 27;       // The limit of a header.
inline constexpr int kMostEighths = 7;

// The least bfloat16, with 8 binary digits, that is not below a magnitude.
inline double bfloat16_up(double magnitude) {
  if (magnitude == 0 || std::isinf(magnitude)) return magnitude;
  const double unit = std::ldexp(1, std::max(std::ilogb(magnitude), -126) - 7);
  return std::ceil(magnitude / unit) * unit;
}

// A number over a step: float64 holds the product of two float32.
inline float over(double number, double step) {
  const float inverse = 1 / static_cast<float>(step);
  return static_cast<float>(number * inverse);
}

// The code of a number over the step; the number is element i of its message.
inline double model_code(float y, const codec::wire::Rounding& rounding, int64_t i) {
  if (!rounding.stochastic) return std::nearbyint(double{y}) + 0.0;  // No negative zero.
  const double below = std::floor(double{y});
  const double part = std::trunc(static_cast<float>(y - below) * 0x1p24);
  return below + std::floor((part + (codec::wire::random_word(rounding, i) >> 8)) * 0x1p-24);
}

// The content of a header.
struct ModelHeader {
  int width = 0;
  double octaves_below = 0;  // Below the message's step.
  int zero_point = 0;
  bool is_negative = false;  // Sign of the step.

  static ModelHeader of(int header) {
    if (header == 0) return {};
    if (header < 8) return {8 + header, 0, 0, false};
    if (header < 64) return {2, (header - 8) / 2 / 4.0, 0, header % 2 == 1};
    const int width = header / 32 + 1;
    return {width, header / 4 % 8 / 8.0, header / 2 % 2 == 1 && width < 8 ? (1 << width) / 8 : 0, header % 2 == 1};
  }

  bool has_own_step() const { return width > 0 && width <= 8; }

  int byte() const {
    if (!has_own_step()) return std::max(0, width - 8);
    if (width == 2) return 8 + static_cast<int>(8 * octaves_below) + (is_negative ? 1 : 0);
    return 32 * (width - 1) + 4 * static_cast<int>(8 * octaves_below) + (zero_point > 0 ? 2 : 0) +
           (is_negative ? 1 : 0);
  }

  // The codes of the width, before the zero point is added. With the message's step there is one code less.
  int least_code() const { return -(1 << (width - 1)) - zero_point + (has_own_step() ? 0 : 1); }
  int greatest_code() const { return (1 << (width - 1)) - 1 - zero_point; }
};

// The greatest magnitudes on the two sides of 0.
struct ModelSides {
  double larger = 0;
  double smaller = 0;
  bool larger_is_positive = false;

  static ModelSides of(double positive, double negative) {
    const double p = bfloat16_up(positive);
    const double n = bfloat16_up(negative);
    return {std::max(p, n), std::min(p, n), p > n};
  }

  static ModelSides of(const Floats& x) {
    double positive = 0;
    double negative = 0;
    for (const float value : x) {
      positive = std::max(positive, double{value});
      negative = std::max(negative, -double{value});
    }
    return of(positive, negative);
  }
};

// A step, and how it rounds.
struct ModelStep {
  double step;
  bool stochastic;

  // How far beyond its outermost codes a width holds numbers: 1/128 less than the range that rounds to them.
  double reach() const { return (stochastic ? 0 : 0.5) - 1.0 / 128; }

  double least_octaves() const {
    return stochastic ? kLeastOctaves : std::max(kLeastOctaves, octaves(step) - kMostQuarters / 4.0);
  }

  // Whether the codes from -most to most hold the numbers of either side. Here and below, each operation is rounded to
  // float32.
  bool holds_on_either_side(double largest, double most) const {
    return static_cast<float>(over(largest, step) + (1 - reach())) <= most + 1;
  }
  bool has_code(double largest) const { return holds_on_either_side(largest, 16383); }

  // Whether the codes of a width hold both sides, if the larger side has the negative codes.
  bool holds(const ModelSides& sides, int width, bool has_zero_point) const {
    const double half = std::ldexp(1, width - 1);
    const auto larger = static_cast<float>(over(sides.larger, step) - reach());
    const auto smaller = static_cast<float>(over(sides.smaller, step) + (1 - reach()));
    if (!has_zero_point) return larger <= half && smaller <= half;
    return static_cast<float>(larger * double{0.8F}) <= half &&
           static_cast<float>(smaller * double{4.0F / 3.0F}) <= half;
  }

  int width(const ModelSides& sides) const {
    if (octaves(sides.larger) < least_octaves()) return 0;
    for (int width = 2; width <= 8; ++width) {
      if (holds(sides, width, false) || (width > 2 && width < 8 && holds(sides, width, true))) return width;
    }
    int width = 9;
    while (width < 15 && !holds_on_either_side(sides.larger, std::ldexp(1, width - 1) - 1)) ++width;
    return width;
  }
};

// A block, which may be partial.
struct ModelBlock : ModelHeader {
  ModelSides sides;
  bool is_farthest = false;  // As far below the message's step as a block of its width can be.
  double own_step;

  ModelBlock(const ModelSides& both_sides, const ModelStep& step) : sides(both_sides), own_step(step.step) {
    width = step.width(sides);
    if (!has_own_step()) return;
    is_negative = sides.larger_is_positive;
    const int zero = width > 2 && width < 8 ? (1 << width) / 8 : 0;
    zero_point = least_step(zero, step.reach()) < least_step(0, step.reach()) ? zero : 0;
    const double part = width == 2 ? 0.25 : 0.125;
    const double most = width == 2 ? kMostQuarters * part : kMostEighths * part;
    while (octaves_below + part <= most && holds_both(octaves_below + part, step)) octaves_below += part;
    is_farthest = octaves_below + part > most || below(octaves_below + part, step) < std::ldexp(1, -101);
    own_step = below(octaves_below, step) * (is_negative ? -1 : 1);
  }
  ModelBlock(const Floats& x, const ModelStep& step) : ModelBlock(ModelSides::of(x), step) {}

  bool is_faint() const { return width == 2; }
  int64_t bytes() const { return int64_t{4} * width; }

  // The largest quotients of the two sides and the block's step.
  double most_larger(int zero, double reach) const { return std::ldexp(1, width - 1) + zero + reach; }
  double most_smaller(int zero, double reach) const { return std::ldexp(1, width - 1) - 1 - zero + reach; }

  double least_step(int zero, double reach) const {
    return std::max(sides.larger / most_larger(zero, reach), sides.smaller / most_smaller(zero, reach));
  }

 private:
  static double below(double parts, const ModelStep& step) { return at_octaves(octaves(step.step) - parts); }

  // Steps and sides are bfloat16, so float64 holds the products. Two products that differ are never so near each other
  // that they are equal in float32.
  bool holds_both(double parts, const ModelStep& step) const {
    const double own = below(parts, step);
    return own >= std::ldexp(1, -101) && sides.larger <= own * most_larger(zero_point, step.reach()) &&
           sides.smaller <= own * most_smaller(zero_point, step.reach());
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
