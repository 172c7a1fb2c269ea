// The plain codec of the variable formats, compared with docs/reference/wire-format.md: sizes, headers, the least step
// that fits, codes, and the error of every element.
#include "ops/codec/variable_width.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "ops/codec/variable_headers.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/ops/wire_format/variable_model.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::Bytes;
using test::Floats;
using test::kInf;
using test::kLengths;
using test::ModelBlock;
using test::ModelSides;
using test::ModelStep;

Bytes encode(int bits, const Floats& x, const Rounding& rounding) {
  const auto n = static_cast<int64_t>(x.size());
  Bytes bytes(static_cast<size_t>(variable_layout(bits, n).bytes), 0xA5);
  encode_variable(bits, x.data(), n, rounding, bytes.data());
  return bytes;
}

Floats decode(int bits, const Bytes& bytes, int64_t n) {
  Floats out(static_cast<size_t>(n));
  decode_variable(bits, bytes.data(), n, out.data());
  return out;
}

uint16_t step_of(const Bytes& bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }

// Whether a message has room for all codes, and the largest element has a code.
bool fits(const Floats& x, const ModelStep& step, const VariableLayout& layout) {
  const double largest = ModelSides::of(x).larger;
  return step.has_code(largest) && test::model_bytes(x, step) <= layout.code_bytes;
}

class VariableWidth : public ::testing::TestWithParam<int> {
 protected:
  const int bits_ = GetParam();

  static ModelStep model_of(uint32_t step, bool stochastic) {
    return {scale_value(static_cast<uint16_t>(step)), stochastic};
  }

  // Extremes of the codes that expect_codes() has seen, including their zero points.
  int least_stored_[16] = {};
  int greatest_stored_[16] = {};

  void expect_headers(const Bytes& bytes, const Floats& x, const ModelStep& step) {
    const VariableLayout layout = variable_layout(bits_, static_cast<int64_t>(x.size()));
    const std::vector<ModelBlock> blocks = test::model_blocks(x, step);
    int64_t end = layout.first_code;
    for (size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_EQ(bytes[2 + i], blocks[i].byte()) << i;
      end += blocks[i].bytes();
    }
    EXPECT_EQ(std::count(bytes.begin() + end, bytes.end(), 0), layout.bytes - end);
  }

  void expect_codes(const Bytes& bytes, const Floats& x, const ModelStep& step, const Rounding& rounding) {
    const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
    const std::vector<ModelBlock> blocks = test::model_blocks(x, step);
    for (size_t i = 0; i < x.size(); ++i) {
      const ModelBlock& block = blocks[i / 32];
      if (block.width == 0) continue;
      const double code = test::model_code(test::over(x[i], block.own_step), rounding, static_cast<int64_t>(i));
      ASSERT_GE(code, block.least_code()) << i << " " << x[i];
      ASSERT_LE(code, block.greatest_code()) << i << " " << x[i];
      const double number = block.own_step * code;
      const double expected = std::abs(number) < 0x1p128 ? number : std::copysign(kInf, number);
      ASSERT_EQ(float_bits(decoded[i]), float_bits(static_cast<float>(expected))) << i << " " << x[i];
      const int stored = static_cast<int>(code) + block.zero_point;
      least_stored_[block.width] = std::min(least_stored_[block.width], stored);
      greatest_stored_[block.width] = std::max(greatest_stored_[block.width], stored);
    }
  }

  // Calls body(x, whether it is rounded at random, how).
  template <class Body>
  void for_each_input(const Body& body) {
    for (const int64_t n : kLengths) {
      for (const auto& [name, x] : test::variable_inputs(n)) {
        SCOPED_TRACE(::testing::Message() << name << " of " << n);
        body(x, false, Rounding{});
        body(x, true, test::kAtRandom);
      }
    }
  }
};

TEST_P(VariableWidth, TakesItsBitsPerElementOfWholeBlocks) {
  for (int64_t blocks = 0; blocks < 5000; ++blocks) {
    const VariableLayout layout = variable_layout(bits_, 32 * blocks);
    EXPECT_EQ(layout.bytes, blocks == 0 ? 0 : std::max<int64_t>(36, 4 * bits_ * blocks));
    EXPECT_EQ(layout.blocks, blocks);
    EXPECT_EQ(layout.first_code + layout.code_bytes, layout.bytes);
    EXPECT_GE(layout.code_bytes, 8 * blocks);  // So that faint blocks fit.
    if (blocks > 0) {
      EXPECT_EQ(variable_layout(bits_, 32 * blocks - 31).bytes, layout.bytes);
      EXPECT_EQ(layout.first_code, 2 + blocks);
    }
  }
}

TEST_P(VariableWidth, HasTheLeastStepWithWhichAllCodesFit) {
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const VariableLayout layout = variable_layout(bits_, static_cast<int64_t>(x.size()));
    const uint16_t step = step_of(encode(bits_, x, rounding));
    ASSERT_GE(step, kLeastStep);
    ASSERT_LE(step, kGreatestStep);
    EXPECT_TRUE(fits(x, model_of(step, stochastic), layout));
    if (step > kLeastStep) {
      EXPECT_FALSE(fits(x, model_of(step - 1U, stochastic), layout));
    }
  });
}

TEST_P(VariableWidth, SaysTheHeadersOfBlocksAndEndsWithZeros) {
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const Bytes bytes = encode(bits_, x, rounding);
    expect_headers(bytes, x, model_of(step_of(bytes), stochastic));
  });
}

// For each block the largest number of either sign, and zeros.
Floats without_all_but_the_largest(const Floats& x) {
  Floats largest(x.size());
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    const auto end = std::min(x.size(), begin + 32);
    const auto [least, greatest] =
        std::minmax_element(x.begin() + static_cast<int64_t>(begin), x.begin() + static_cast<int64_t>(end));
    if (*least < 0) largest[static_cast<size_t>(least - x.begin())] = *least;
    if (*greatest > 0) largest[static_cast<size_t>(greatest - x.begin())] = *greatest;
  }
  return largest;
}

TEST_P(VariableWidth, HasAStepAndHeadersOfTheLargestElementsOfEitherSignAlone) {
  for_each_input([&](const Floats& x, bool, const Rounding& rounding) {
    const Bytes bytes = encode(bits_, x, rounding);
    const Bytes other = encode(bits_, without_all_but_the_largest(x), rounding);
    const auto codes = variable_layout(bits_, static_cast<int64_t>(x.size())).first_code;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + (x.empty() ? 0 : codes), other.begin()));
  });
}

// Every code lies within its block's width, so that no two codes are confused.
TEST_P(VariableWidth, HasTheCodesOfEveryElementOverItsBlocksStep) {
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const Bytes bytes = encode(bits_, x, rounding);
    expect_codes(bytes, x, model_of(step_of(bytes), stochastic), rounding);
  });
}

// Codes of blocks with their own step range from -2^(width - 1) to 2^(width - 1) - 1. All of them are used.
TEST_P(VariableWidth, HasAllHeadersWithTheirOutermostCodes) {
  const Floats x = test::about_all_headers();
  for (const bool stochastic : {false, true}) {
    SCOPED_TRACE(stochastic);
    const Rounding rounding = stochastic ? test::kAtRandom : Rounding{};
    const Bytes bytes = encode(bits_, x, rounding);
    ASSERT_EQ(scale_value(step_of(bytes)), test::HeaderLimit::kStep);
    const ModelStep step = model_of(step_of(bytes), stochastic);
    expect_headers(bytes, x, step);
    expect_codes(bytes, x, step, rounding);
    std::set<int> headers;
    for (const ModelBlock& block : test::model_blocks(x, step)) headers.insert(block.byte());
    for (int header = 0; header < 256; ++header) {
      EXPECT_EQ(headers.contains(header), header < 224 || header / 2 % 2 == 0) << header;
    }
  }
  for (int width = 2; width <= 8; ++width) {
    EXPECT_EQ(least_stored_[width], -(1 << (width - 1)));
    EXPECT_EQ(greatest_stored_[width], (1 << (width - 1)) - 1);
  }
}

// The relative error of a number over a step: two rounding errors of 2^-24. The inverse of a step above 2^126 is
// subnormal and has an error of up to 2^-22.
double error_over(double step) { return step > 0x1p126 ? 0x1.4p-22 : 0x1.000001p-23; }

// The error is half of the block's step, which is at most the message's step; at random it is a whole step. The error
// of x over the step is added. Elements that become 0 are below half of the least step or, to nearest, below a step 27
// quarters of an octave below the message's. That is at most 1.25 * 2^-7 of the message's step: for steps from 1 to 2
// it grows linearly from 1.25 * 2^-7 to 2^-6, and from there to 1.25 * 2^-6.
TEST_P(VariableWidth, IsWithinHalfAStepOfEveryElement) {
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    const Bytes bytes = encode(bits_, x, rounding);
    const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
    if (x.empty()) return;
    const std::vector<ModelBlock> blocks = test::model_blocks(x, model_of(step_of(bytes), stochastic));
    const double step = scale_value(step_of(bytes));
    const double lost = std::max(0x1p-101, stochastic ? 0 : step * 0x1.4p-7);
    for (size_t i = 0; i < x.size(); ++i) {
      const ModelBlock& block = blocks[i / 32];
      if (block.width == 0) {
        ASSERT_EQ(float_bits(decoded[i]), 0) << i << " " << x[i];
        ASSERT_LT(std::abs(x[i]), lost) << i;
        continue;
      }
      const double own = std::abs(block.own_step);
      ASSERT_LE(own, step);
      const double error = own * (stochastic ? 1.0 : 0.5) + std::abs(x[i]) * error_over(own);
      if (std::isinf(decoded[i]) && std::abs(x[i]) + error >= 0x1p128) continue;
      ASSERT_LE(std::abs(double{decoded[i]} - x[i]), error) << i << " " << x[i];
    }
  });
}

// Each block has the least step of its headers. A step that is a quarter of an octave smaller (an eighth with more
// bits) is smaller by a factor of at least 0.8 (8/9), and would be too small for one side. To nearest, the largest
// element of a faint block does not become 0.
TEST_P(VariableWidth, HasBlocksWithTheLeastStepsOfTheirWidth) {
  int64_t own_steps = 0;
  int64_t of_the_message = 0;
  int64_t farthest = 0;
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const Bytes bytes = encode(bits_, x, rounding);
    const ModelStep step = model_of(step_of(bytes), stochastic);
    const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
    const std::vector<ModelBlock> blocks = test::model_blocks(x, step);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const ModelBlock& block = blocks[i];
      if (!block.has_own_step()) continue;
      const double own = std::abs(block.own_step);
      (own == step.step ? of_the_message : block.is_farthest ? farthest : own_steps) += 1;
      const double least = block.least_step(block.zero_point, step.reach());
      if (own < step.step) {
        ASSERT_GE(own, least) << i;
      } else {
        ASSERT_GE(own, least * (1 - 0x1.5p-22)) << i;
      }
      if (!block.is_farthest) {
        ASSERT_GE(least, own * (block.is_faint() ? 0.8 : 8.0 / 9)) << i;
      }
      if (block.is_faint() && !stochastic) {
        const auto begin = decoded.begin() + static_cast<int64_t>(32 * i);
        ASSERT_NE(std::count(begin, std::min(decoded.end(), begin + 32), 0.0F), std::min<size_t>(32, x.size() - 32 * i))
            << i;
      }
    }
  });
  if (!test::kSanitized) {
    EXPECT_GT(own_steps, 0);
    EXPECT_GT(of_the_message, 0);
    EXPECT_GT(farthest, 0);
  }
}

TEST_P(VariableWidth, IsNanAsAWholeWithANumberThatNoStepReaches) {
  for (const float value : {kInf, -kInf, std::nanf(""), float_of_bits(0xFF800001U), float_of_bits(0x7F7D0001U),
                            -float_of_bits(0x7F7D0001U), -std::numeric_limits<float>::max()}) {
    for (const size_t at : {0, 40, 99}) {
      Floats x = test::all_variable_inputs(100)[0].second;
      x[at] = value;
      Bytes expected(static_cast<size_t>(variable_layout(bits_, 100).bytes), 0);
      expected[0] = 0xC0;
      expected[1] = 0x7F;
      EXPECT_EQ(encode(bits_, x, {}), expected) << value;
      EXPECT_EQ(encode(bits_, x, test::kAtRandom), expected) << value;
      for (const float decoded : decode(bits_, expected, 100)) EXPECT_TRUE(std::isnan(decoded));
    }
  }
}

TEST_P(VariableWidth, SaysZeroWithTheLeastStep) {
  for (const float zero : {0.0F, -0.0F, 0x1p-102F, -0x1p-149F, 0x1.FEp-102F}) {
    Bytes expected(static_cast<size_t>(variable_layout(bits_, 70).bytes), 0);
    expected[0] = 0x80;
    expected[1] = 0x0D;
    EXPECT_EQ(encode(bits_, Floats(70, zero), {}), expected);
    EXPECT_EQ(encode(bits_, Floats(70, zero), test::kAtRandom), expected);
    for (const float decoded : decode(bits_, expected, 70)) EXPECT_EQ(float_bits(decoded), 0);
  }
}

TEST_P(VariableWidth, HasAStepForTheGreatestMagnitudesOnBothSides) {
  for (const bool stochastic : {false, true}) {
    Floats x(200, test::kGreatestMagnitude);
    for (size_t i = 0; i < x.size(); i += 3) x[i] = -x[i];
    const Bytes bytes = encode(bits_, x, stochastic ? test::kAtRandom : Rounding{});
    EXPECT_NE(step_of(bytes), kNanScale);
    EXPECT_LE(step_of(bytes), kGreatestStep);
    for (const float value : decode(bits_, bytes, 200)) EXPECT_FALSE(std::isnan(value));
  }
}

// To nearest its step is half of the least step, and the code -1. The same holds at random: a step 2 quarters of an
// octave smaller would hold it, but does not exist.
TEST_P(VariableWidth, KeepsHalfOfTheLeastStep) {
  for (const float sign : {1.0F, -1.0F}) {
    const Floats x(70, sign * 0x1p-101F);
    for (const Rounding& rounding : {Rounding{}, test::kAtRandom}) {
      const Bytes bytes = encode(bits_, x, rounding);
      EXPECT_EQ(step_of(bytes), kLeastStep);
      EXPECT_EQ(bytes[2], 8 + 2 * 4 + (sign > 0 ? 1 : 0));
      EXPECT_EQ(decode(bits_, bytes, 70), x);
    }
  }
}

// The mean of independent numbers in an interval of one step of their block, by Hoeffding's inequality, except in one
// of 10^9 cases.
TEST_P(VariableWidth, HasNoBiasAtRandom) {
  constexpr int64_t kSize = 200;
  constexpr int64_t kMessages = test::kSanitized ? 64 : 4096;
  for (const size_t input : {1, 12, 19}) {  // All magnitudes, mostly faint, and with zero points.
    const auto [name, x] = test::all_variable_inputs(kSize)[input];
    SCOPED_TRACE(name);
    std::vector<double> sum(x.size());
    std::vector<ModelBlock> blocks;
    for (uint64_t i = 0; i < kMessages; ++i) {
      const Bytes bytes = encode(bits_, x, {true, 99, i, 0});
      if (i == 0) blocks = test::model_blocks(x, model_of(step_of(bytes), true));
      const Floats decoded = decode(bits_, bytes, kSize);
      for (size_t k = 0; k < x.size(); ++k) sum[k] += decoded[k];
    }
    const auto hoeffding = [](double values, double tests) { return std::sqrt(std::log(2e9 * tests) / (2 * values)); };
    double mean = 0;
    for (size_t k = 0; k < x.size(); ++k) {
      if (blocks[k / 32].width == 0) continue;
      const double bias = (sum[k] / kMessages - x[k]) / std::abs(blocks[k / 32].own_step);
      EXPECT_LE(std::abs(bias), hoeffding(kMessages, kSize) + 0x1p-9) << k;  // The largest numbers' rounding.
      mean += bias / kSize;
    }
    EXPECT_LE(std::abs(mean), hoeffding(kMessages * kSize, 1) + 0x1p-9);
  }
}

INSTANTIATE_TEST_SUITE_P(All, VariableWidth, ::testing::Values(3, 4, 5, 6));

}  // namespace
}  // namespace narrowcast::codec::wire
