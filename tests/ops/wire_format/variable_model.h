// What docs/wire_format.md says of blocks of the variable formats, once more: in float64 and in its own terms, to
// compare the plain codec with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/ops/wire_format/variable_inputs.h"

namespace narrowcast::test {

// Float32 numbers of three digits by their order: the exponent times four, and the two digits behind the first.
inline int scale_order(double magnitude, bool rounded_up) {
  int exponent = 0;
  const double eighths = std::frexp(magnitude, &exponent) * 8;  // 4 to 8.
  return 4 * exponent + static_cast<int>(rounded_up ? std::ceil(eighths) : std::floor(eighths)) - 4;
}

inline double scale_of_order(int order) {
  const int digits = (order % 4 + 4) % 4;
  return std::ldexp(4 + digits, (order - digits) / 4 - 3);
}

// A step, and how it rounds.
struct ModelStep {
  double step;
  bool stochastic;
  int farthest = 254;  // How far below it an own scale is at most.

  // The greatest that a number of this magnitude can have.
  double code(double magnitude) const {
    const float inverse = 1 / static_cast<float>(step);
    const auto y = static_cast<float>(magnitude * inverse);  // float64 holds the product of two float32.
    return stochastic ? std::ceil(double{y}) : std::nearbyint(double{y});
  }
};

// A block, or what there is of it.
struct ModelBlock {
  int nibble = 0;     // Digits of its greatest code, 1 of a faint block.
  int distance = -1;  // Of a faint block.
  double scale = 0;
  int64_t bytes = 0;  // In all.

  ModelBlock(const Floats& x, const ModelStep& step) {
    double largest = 0;
    for (const float value : x) largest = std::max(largest, std::abs(double{value}));
    const double greatest = step.code(largest);
    if (greatest < 2) {
      set_faint(largest, step);
      return;
    }
    while (std::ldexp(1, nibble) <= greatest) ++nibble;
    scale = step.step;
    bytes = 4 * (nibble + 1);
  }

 private:
  void set_faint(double largest, const ModelStep& step) {
    const int of_step = scale_order(step.step, false);
    const int own = largest > 0 ? scale_order(largest, step.stochastic) : std::numeric_limits<int>::min();
    if (own < scale_order(0x1p-101, false) || own < of_step - step.farthest) return;
    nibble = 1;
    distance = own > of_step ? 255 : of_step - own;
    scale = own > of_step ? step.step : scale_of_order(own);
    bytes = 4 + 4 + 1;
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
  for (const ModelBlock& block : model_blocks(x, step)) bytes += block.bytes;
  return bytes;
}

}  // namespace narrowcast::test
