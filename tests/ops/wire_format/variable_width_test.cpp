// The plain codec of the variable formats against what docs/wire_format.md says of them: sizes, the least step that
// fits, the error of every element, and messages of any bytes.
#include "ops/codec/variable_width.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/support/end_of_page.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::Bytes;
using test::Floats;
using test::kLengths;

constexpr float kGreatest = test::kGreatestBfloat16;

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

// The code of the largest magnitude of a block, in another way: float64 holds the product of two float32.
double greatest_code(float largest, uint16_t step, bool stochastic) {
  const float inverse = 1 / scale_value(step);
  const auto y = static_cast<float>(double{largest} * inverse);
  return stochastic ? std::ceil(double{y}) : std::nearbyint(double{y});
}

// The bits that all codes of a message take, in words, or more than any message has.
int64_t words_at(const Floats& x, uint16_t step, bool stochastic) {
  int64_t words = 0;
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    float largest = 0;
    for (size_t i = begin; i < std::min(begin + 32, x.size()); ++i) largest = std::max(largest, std::abs(x[i]));
    const double code = greatest_code(largest, step, stochastic);
    if (!(code <= 32767)) return std::numeric_limits<int64_t>::max();
    int width = 0;
    while (std::ldexp(1, width) <= code) ++width;
    words += code == 0 ? 0 : width + 1;
  }
  return words;
}

class VariableWidth : public ::testing::TestWithParam<int> {
 protected:
  const int bits_ = GetParam();

  template <class Body>
  void for_each_input(const Body& body) {
    for (const int64_t n : kLengths) {
      for (const auto& [name, x] : test::variable_inputs(n)) {
        SCOPED_TRACE(::testing::Message() << name << " of " << n);
        body(x);
      }
    }
  }
};

TEST_P(VariableWidth, TakesItsBitsPerElementOfWholeBlocks) {
  for (int64_t blocks = 0; blocks < 5000; ++blocks) {
    const VariableLayout layout = variable_layout(bits_, 32 * blocks);
    EXPECT_EQ(layout.bytes, blocks == 0 ? 0 : std::max<int64_t>(36, 4 * bits_ * blocks));
    EXPECT_EQ(layout.blocks, blocks);
    EXPECT_LE(layout.first_word + 4 * layout.words, layout.bytes);
    EXPECT_GE(layout.words, 2 * blocks);  // So that the least codes fit.
    if (blocks > 0) {
      EXPECT_EQ(variable_layout(bits_, 32 * blocks - 31).bytes, layout.bytes);
      EXPECT_EQ(layout.first_word, 2 + (blocks + 1) / 2);
    }
  }
  EXPECT_EQ(variable_layout(bits_, 1).words, 8);
}

TEST_P(VariableWidth, HasTheLeastStepWithWhichAllCodesFit) {
  for_each_input([&](const Floats& x) {
    if (x.empty()) return;
    const VariableLayout layout = variable_layout(bits_, static_cast<int64_t>(x.size()));
    for (const bool stochastic : {false, true}) {
      const uint16_t step = step_of(encode(bits_, x, stochastic ? test::kAtRandom : Rounding{}));
      ASSERT_GE(step, kLeastStep);
      ASSERT_LE(step, kGreatestStep);
      EXPECT_LE(words_at(x, step, stochastic), layout.words);
      if (step > kLeastStep) {
        EXPECT_GT(words_at(x, static_cast<uint16_t>(step - 1), stochastic), layout.words);
      }
    }
  });
}

// Half a step, a whole one at random; rounding the product with the inverse moves a tie by 2^-23 of it, or by 2^-22
// where the inverse is subnormal.
TEST_P(VariableWidth, IsWithinHalfAStepOfEveryElement) {
  for_each_input([&](const Floats& x) {
    for (const bool stochastic : {false, true}) {
      const Bytes bytes = encode(bits_, x, stochastic ? test::kAtRandom : Rounding{});
      const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
      for (size_t i = 0; i < x.size(); ++i) {
        const double bound = scale_value(step_of(bytes)) * (stochastic ? 1.0 : 0.5) + std::abs(x[i]) * 0x1p-22;
        ASSERT_LE(std::abs(double{decoded[i]} - x[i]), bound) << i << " " << x[i];
      }
    }
  });
}

TEST_P(VariableWidth, GivesBlocksTheWidthOfTheirLargestCodeAndEndsWithZeros) {
  for_each_input([&](const Floats& x) {
    const auto n = static_cast<int64_t>(x.size());
    const VariableLayout layout = variable_layout(bits_, n);
    const Bytes bytes = encode(bits_, x, {});
    int64_t words = 0;
    for (int64_t i = 0; i < layout.blocks; ++i) {
      const uint32_t nibble = nibble_at(bytes.data() + 2, i);
      const Floats block(x.begin() + 32 * i, x.begin() + std::min(n, 32 * i + 32));
      ASSERT_EQ(width_of_nibble(nibble), words_at(block, step_of(bytes), false)) << i;
      words += width_of_nibble(nibble);
    }
    if (layout.blocks % 2 == 1) {
      EXPECT_EQ(nibble_at(bytes.data() + 2, layout.blocks), 0);
    }
    const auto behind = bytes.begin() + layout.first_word + 4 * words;
    EXPECT_EQ(std::count(behind, bytes.end(), 0), bytes.end() - behind);
  });
}

TEST_P(VariableWidth, IsNanAsAWholeWithANumberThatNoStepReaches) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float value : {kInf, -kInf, std::nanf(""), float_of_bits(0xFF800001U), float_of_bits(0x7F7F0001U),
                            -std::numeric_limits<float>::max()}) {
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
  for (const float zero : {0.0F, -0.0F, 0x1p-102F, -0x1p-149F}) {
    Bytes expected(static_cast<size_t>(variable_layout(bits_, 70).bytes), 0);
    expected[0] = 0x80;
    expected[1] = 0x0D;
    EXPECT_EQ(encode(bits_, Floats(70, zero), {}), expected);
    for (const float decoded : decode(bits_, expected, 70)) EXPECT_EQ(float_bits(decoded), 0);
  }
}

// A message in memory behind which there is nothing: its numbers are what they say, or NaN.
TEST_P(VariableWidth, ReadsNothingBehindAMessageOfAnyBytes) {
  std::mt19937 engine(5);
  for (const int64_t n : kLengths) {
    const VariableLayout layout = variable_layout(bits_, n);
    test::EndOfPage message(static_cast<size_t>(layout.bytes));
    for (int round = 0; round < 30; ++round) {
      std::generate_n(message.data(), layout.bytes, [&] { return static_cast<uint8_t>(round == 0 ? 0xFF : engine()); });
      Floats out(static_cast<size_t>(n));
      decode_variable(bits_, message.data(), n, out.data());
      int64_t words = 0;
      for (int64_t i = 0; i < n; ++i) {
        words += i % 32 == 0 ? width_of_nibble(nibble_at(message.data() + 2, i / 32)) : 0;
        if (words > layout.words) {
          ASSERT_EQ(float_bits(out[static_cast<size_t>(i)]), kQuietNanBits) << i;
        }
      }
    }
  }
}

// The mean of independent numbers in an interval of one step: Hoeffding's inequality, for but one case in 10^9.
TEST_P(VariableWidth, HasNoBiasAtRandom) {
  constexpr int64_t kSize = 200;
  constexpr int64_t kSteps = test::kSanitized ? 64 : 4096;
  const Floats x = test::all_variable_inputs(kSize)[1].second;
  std::vector<double> sum(x.size());
  double step = 0;
  for (uint64_t i = 0; i < kSteps; ++i) {
    const Bytes bytes = encode(bits_, x, {true, 99, i, 0});
    step = scale_value(step_of(bytes));
    const Floats decoded = decode(bits_, bytes, kSize);
    for (size_t k = 0; k < x.size(); ++k) sum[k] += decoded[k];
  }
  const auto hoeffding = [](double values, double tests) { return std::sqrt(std::log(2e9 * tests) / (2 * values)); };
  double mean = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    const double bias = (sum[k] / kSteps - x[k]) / step;
    EXPECT_LE(std::abs(bias), hoeffding(kSteps, kSize) + 0x1p-9) << k;  // 15 digits of 24 are before the point.
    mean += bias / kSize;
  }
  EXPECT_LE(std::abs(mean), hoeffding(kSteps * kSize, 1) + 0x1p-9);
}

INSTANTIATE_TEST_SUITE_P(All, VariableWidth, ::testing::Values(3, 4, 5, 6));

TEST(StepCodes, AreAtMostOneOfAllMagnitudesUpToTheStep) {
  for (uint32_t step = kLeastStep; step <= kGreatestStep; ++step) {
    const float inverse = inverse_scale(static_cast<uint16_t>(step));
    ASSERT_GT(inverse, 0);
    ASSERT_TRUE(std::isfinite(inverse));
    ASSERT_EQ(StepCodes({inverse, false}).width(scale_value(static_cast<uint16_t>(step))), 2U) << step;
  }
  EXPECT_EQ(StepCodes({inverse_scale(kGreatestStep), true}).width(kGreatest), 2U);
}

TEST(StepCodes, HaveTheWidthThatHoldsTheCodeOfEitherSign) {
  for (int32_t code = 0; code <= 32767; ++code) {
    int width = 0;
    while (code > (1 << width) - 1) ++width;  // Digits, and one more for the sign.
    EXPECT_EQ(StepCodes({1, false}).width(static_cast<float>(code)), code == 0 ? 0U : static_cast<uint32_t>(width + 1));
  }
  EXPECT_EQ(StepCodes({1, false}).width(0.5F), 0U);  // A tie.
  EXPECT_EQ(StepCodes({1, true}).width(0x1p-140F), 2U);
  EXPECT_TRUE(StepCodes({1, false}).has_code(32767.25F));
  EXPECT_FALSE(StepCodes({1, false}).has_code(32767.5F));
  EXPECT_FALSE(StepCodes({1, true}).has_code(32767.25F));
  EXPECT_FALSE(StepCodes({1, false}).has_code(std::numeric_limits<float>::infinity()));
}

TEST(VariableCode, GoesToTheNeighboursAtRandom) {
  for (const float y : {-3.25F, 0.0F, -0x1p-30F, 0x1p-30F, 7.0F, -7.0F, 32766.998F, -32766.998F}) {
    EXPECT_EQ(variable_code(y, 0), static_cast<int32_t>(std::floor(y)) + (y == -0x1p-30F ? 1 : 0)) << y;
    EXPECT_EQ(variable_code(y, ~0U), static_cast<int32_t>(y == 0x1p-30F ? 0 : std::ceil(y))) << y;
  }
  EXPECT_EQ(variable_code(2.5F), 2);
  EXPECT_EQ(variable_code(-3.5F), -4);
}

}  // namespace
}  // namespace narrowcast::codec::wire
