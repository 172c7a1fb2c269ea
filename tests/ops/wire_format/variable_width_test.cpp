// The plain codec of the variable formats against what docs/wire_format.md says of them: sizes, headers, the least
// step that fits, the error of every element, and messages of any bytes.
#include "ops/codec/variable_width.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/ops/wire_format/variable_model.h"
#include "tests/support/end_of_page.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::Bytes;
using test::Floats;
using test::kInf;
using test::kLengths;
using test::ModelBlock;
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

// Whether a message has room for all codes, and there is one for the largest element.
bool fits(const Floats& x, const ModelStep& step, const VariableLayout& layout) {
  double largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(double{value}));
  return step.code(largest) <= kGreatestVariableCode && test::model_bytes(x, step) <= layout.code_bytes;
}

class VariableWidth : public ::testing::TestWithParam<int> {
 protected:
  const int bits_ = GetParam();

  static ModelStep model_of(uint32_t step, bool stochastic) {
    return {scale_value(static_cast<uint16_t>(step)), stochastic};
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
  std::set<int> headers;
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const VariableLayout layout = variable_layout(bits_, static_cast<int64_t>(x.size()));
    const Bytes bytes = encode(bits_, x, rounding);
    const ModelStep step = model_of(step_of(bytes), stochastic);
    const std::vector<ModelBlock> blocks = test::model_blocks(x, step);
    for (int64_t i = 0; i < layout.blocks; ++i) {
      const int header = blocks[static_cast<size_t>(i)].header();
      ASSERT_EQ(bytes[static_cast<size_t>(2 + i)], header) << i;
      headers.insert(header);
    }
    const auto behind = bytes.begin() + layout.first_code + test::model_bytes(x, step);
    EXPECT_EQ(std::count(behind, bytes.end(), 0), bytes.end() - behind);
  });
  if (test::kSanitized) return;
  EXPECT_TRUE(headers.contains(0));  // The inputs have all widths and all distances.
  for (int half = 0; half < 16; ++half) {
    const auto of_wide = [&](int header) { return header % 16 > 2 && header / 16 == half; };
    EXPECT_TRUE(headers.contains(16 * half + 1)) << half;
    EXPECT_TRUE(headers.contains(16 * half + 2)) << half;
    EXPECT_TRUE(std::any_of(headers.begin(), headers.end(), of_wide)) << half;
    EXPECT_TRUE(std::any_of(headers.begin(), headers.end(), [&](int header) { return header % 16 == half; })) << half;
  }
}

TEST_P(VariableWidth, HasAStepAndHeadersOfTheLargestElementsAlone) {
  for_each_input([&](const Floats& x, bool, const Rounding& rounding) {
    Floats largest = x;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto* const begin = x.data() + i / 32 * 32;
      const auto* const end = x.data() + std::min(x.size(), i / 32 * 32 + 32);
      const auto at = std::max_element(begin, end, [](float a, float b) { return std::abs(a) < std::abs(b); });
      if (at != x.data() + i) largest[i] = 0;
    }
    const Bytes bytes = encode(bits_, x, rounding);
    const Bytes other = encode(bits_, largest, rounding);
    const auto codes = variable_layout(bits_, static_cast<int64_t>(x.size())).first_code;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + codes, other.begin()));
  });
}

TEST_P(VariableWidth, HasTheCodesOfEveryElementOverItsBlocksStep) {
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const Bytes bytes = encode(bits_, x, rounding);
    const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
    const std::vector<ModelBlock> blocks = test::model_blocks(x, model_of(step_of(bytes), stochastic));
    for (size_t i = 0; i < x.size(); ++i) {
      const ModelBlock& block = blocks[i / 32];
      if (block.width == 0) continue;
      const double code = test::model_code(test::over(x[i], block.own_step), rounding, static_cast<int64_t>(i));
      const double number = block.own_step * code;
      ASSERT_EQ(decoded[i], std::abs(number) < 0x1p128 ? number : std::copysign(kInf, number)) << i << " " << x[i];
    }
  });
}

// What a number over a step is off by, relative to itself: two roundings of 2^-24 of it. The inverse of a step above
// 2^126 is subnormal, and itself off by up to 2^-22.
double error_over(double step) { return step > 0x1p126 ? 0x1.4p-22 : 0x1.000001p-23; }

// Half of the block's own step, which is not above that of the message, a whole one at random; and what x over it is
// off by. What is lost is below half of the least step, or to nearest 31 quarters of an octave below the step: at
// most 1.25 * 2^-8 of it, as they go on evenly from 1.25 * 2^-8 to 2^-7 and to 1.25 * 2^-7.
TEST_P(VariableWidth, IsWithinHalfAStepOfEveryElement) {
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    const Bytes bytes = encode(bits_, x, rounding);
    const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
    if (x.empty()) return;
    const std::vector<ModelBlock> blocks = test::model_blocks(x, model_of(step_of(bytes), stochastic));
    const double step = scale_value(step_of(bytes));
    const double lost = std::max(0x1p-101, stochastic ? 0 : step * 0x1.4p-8);
    for (size_t i = 0; i < x.size(); ++i) {
      const ModelBlock& block = blocks[i / 32];
      if (block.width == 0) {
        ASSERT_EQ(float_bits(decoded[i]), 0) << i << " " << x[i];
        ASSERT_LT(std::abs(x[i]), lost) << i;
        continue;
      }
      ASSERT_LE(block.own_step, step);
      const double error = block.own_step * (stochastic ? 1.0 : 0.5) + std::abs(x[i]) * error_over(block.own_step);
      if (std::isinf(decoded[i]) && std::abs(x[i]) + error >= 0x1p128) continue;
      ASSERT_LE(std::abs(double{decoded[i]} - x[i]), error) << i << " " << x[i];
    }
  });
}

// To nearest a faint block's largest element m becomes its step, at random that or 0. m over it is at most 1.484375, or
// 0.984375 at random, and less than a quarter of an octave below that, which is at most a factor of 1.25. But with the
// message's step it may be all that has no code of 2; and with the least that there is, any that is not lost.
TEST_P(VariableWidth, KeepsBlocksBelowTheStep) {
  int64_t own_steps = 0;
  int64_t of_the_message = 0;
  int64_t farthest = 0;
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const Bytes bytes = encode(bits_, x, rounding);
    const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
    const std::vector<ModelBlock> blocks = test::model_blocks(x, model_of(step_of(bytes), stochastic));
    const double most = stochastic ? 0.984375 : 1.484375;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const ModelBlock& block = blocks[i];
      if (!block.is_faint()) continue;
      const auto* const begin = x.data() + 32 * i;
      const auto less = [](float a, float b) { return std::abs(a) < std::abs(b); };
      const auto* const end = x.data() + std::min(x.size(), 32 * i + 32);
      const auto at = static_cast<size_t>(std::max_element(begin, end, less) - x.data());
      if (!stochastic || decoded[at] != 0) {
        ASSERT_EQ(double{decoded[at]}, std::copysign(block.own_step, x[at])) << at;
      }
      const double over_step = block.largest / block.own_step;
      const bool is_of_the_message = block.own_step == scale_value(step_of(bytes));
      (is_of_the_message ? of_the_message : block.is_farthest ? farthest : own_steps) += 1;
      if (is_of_the_message) {
        ASSERT_LE(over_step, (stochastic ? 1.0 : 1.5) * (1 + 0x1.5p-22)) << at;
      } else {
        ASSERT_LE(over_step, most * (1 + 0x1p-24)) << at;
      }
      if (!block.is_farthest) {
        ASSERT_GT(over_step, most / 1.25 * (1 - 0x1p-24)) << at;
      } else if (!stochastic) {  // The one of 2^-101 and more is less than a quarter of an octave above it.
        ASSERT_GE(over_step, block.own_step < 0x1.4p-101 ? 0.8 : 1) << at;
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
  for (const float zero : {0.0F, -0.0F, 0x1p-102F, -0x1p-149F, 0x1.fffffep-102F}) {
    Bytes expected(static_cast<size_t>(variable_layout(bits_, 70).bytes), 0);
    expected[0] = 0x80;
    expected[1] = 0x0D;
    EXPECT_EQ(encode(bits_, Floats(70, zero), {}), expected);
    EXPECT_EQ(encode(bits_, Floats(70, zero), test::kAtRandom), expected);
    for (const float decoded : decode(bits_, expected, 70)) EXPECT_EQ(float_bits(decoded), 0);
  }
}

// As it is to nearest. At random its step is 3 quarters of an octave below the least, as the next leaves it less than a
// 64th below 1.
TEST_P(VariableWidth, KeepsHalfOfTheLeastStep) {
  const Floats x(70, -0x1p-101F);
  const Bytes nearest = encode(bits_, x, {});
  EXPECT_EQ(step_of(nearest), kLeastStep);
  EXPECT_EQ(nearest[2], 0x42);
  EXPECT_EQ(decode(bits_, nearest, 70), x);
  const Bytes at_random = encode(bits_, x, test::kAtRandom);
  EXPECT_EQ(step_of(at_random), kLeastStep);
  EXPECT_EQ(at_random[2], 0x32);
  const Floats decoded = decode(bits_, at_random, 70);
  EXPECT_GT(std::count(decoded.begin(), decoded.end(), -0x1.4p-101F), 0);
  for (const float value : decoded) EXPECT_TRUE(value == 0 || value == -0x1.4p-101F) << value;
}

// A message in memory behind which there is nothing: its numbers are what they say, or from the first group on that
// would end behind it NaN.
TEST_P(VariableWidth, ReadsNothingBehindAMessageOfAnyBytes) {
  std::mt19937 engine(5);
  for (const int64_t n : kLengths) {
    const VariableLayout layout = variable_layout(bits_, n);
    test::EndOfPage message(static_cast<size_t>(layout.bytes));
    for (int round = 0; round < 30; ++round) {
      std::generate_n(message.data(), layout.bytes, [&] { return static_cast<uint8_t>(round == 0 ? 0xFF : engine()); });
      const bool is_finite = round % 3 > 0 && n > 0;
      if (is_finite) {
        message.data()[1] = 0x3F;  // With which no step is NaN; and widths some of which fit.
        for (int64_t i = 2; i < layout.first_code; ++i) message.data()[i] &= round % 3 == 1 ? 0xF3 : 0xF7;
      }
      Floats out(static_cast<size_t>(n));
      decode_variable(bits_, message.data(), n, out.data());
      int64_t end = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = i; i % 1024 == 0 && k < std::min(n, i + 1024); k += 32) {
          const int lower = message.data()[2 + k / 32] % 16;
          end += lower == 1 ? 8 : 4 * lower;
        }
        if (end > layout.code_bytes) {
          ASSERT_EQ(float_bits(out[static_cast<size_t>(i)]), kQuietNanBits) << i;
        } else if (is_finite) {
          ASSERT_TRUE(std::isfinite(out[static_cast<size_t>(i)])) << i;
        }
      }
    }
  }
}

TEST_P(VariableWidth, IsNanFromTheGroupThatEndsBehindIt) {
  const Floats x = test::all_variable_inputs(3000)[0].second;
  Bytes bytes = encode(bits_, x, {});
  const Floats decoded = decode(bits_, bytes, 3000);
  std::fill_n(bytes.begin() + 2 + 32, 32, uint8_t{0xFF});  // Widths of 15 for the second one.
  const Floats nan = decode(bits_, bytes, 3000);
  for (size_t i = 0; i < 3000; ++i) {
    if (i < 1024) {
      ASSERT_EQ(nan[i], decoded[i]);
    } else {
      ASSERT_TRUE(std::isnan(nan[i])) << i;
    }
  }
}

// The mean of independent numbers in an interval of one step of their block: Hoeffding's inequality, for but one case
// in 10^9.
TEST_P(VariableWidth, HasNoBiasAtRandom) {
  constexpr int64_t kSize = 200;
  constexpr int64_t kMessages = test::kSanitized ? 64 : 4096;
  for (const size_t input : {1, 12}) {  // Of all kinds, and mostly faint.
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
      const double bias = (sum[k] / kMessages - x[k]) / blocks[k / 32].own_step;
      EXPECT_LE(std::abs(bias), hoeffding(kMessages, kSize) + 0x1p-9) << k;  // Rounding the greatest codes' numbers.
      mean += bias / kSize;
    }
    EXPECT_LE(std::abs(mean), hoeffding(kMessages * kSize, 1) + 0x1p-9);
  }
}

INSTANTIATE_TEST_SUITE_P(All, VariableWidth, ::testing::Values(3, 4, 5, 6));

// Two blocks in 36 bytes have 32 for their codes: 8 of a faint block, and 24 of 6 bits. All of it is read, and no more.
TEST(VariableMessage, MayBeFullToItsLastByte) {
  Bytes bytes(36, 0);
  bytes[1] = 0x40;      // The step is 2.
  bytes[2] = 0x32;      // That of the faint block is 3 quarters of an octave below,
  bytes[3] = 0x46;      // and of the other one 4 sixteenths.
  bytes[4 + 4] = 2;     // Element 1 of the faint block is 1.
  bytes[4 + 8] = 1;     // Element 0 of the other one is -32.
  bytes[4 + 31] = 128;  // Its last one is 1.
  const Floats out = decode(3, bytes, 64);
  for (size_t i = 0; i < 64; ++i) {
    ASSERT_EQ(out[i], i == 1 ? 1.25F : i == 32 ? -56.0F : i == 63 ? 1.75F : 0.0F) << i;
  }
  bytes[2] = 0x31;  // 16 quarters more.
  EXPECT_EQ(decode(3, bytes, 64)[1], 0x1.4p-4F);
  for (const auto& [faint, wide] : {std::pair{0x32, 0x47}, {0x31, 0x47}, {0x33, 0x46}}) {
    bytes[2] = static_cast<uint8_t>(faint);
    bytes[3] = static_cast<uint8_t>(wide);
    for (const float value : decode(3, bytes, 64)) ASSERT_TRUE(std::isnan(value));
  }
}

// A header may say more than there is of the step, whose bits may be any. The code of element 0 is 1 with a width of 2,
// and with one of 3 it is 2.
TEST(VariableMessage, OfAnyStepHasBlocksBelowItAndNotBelowZero) {
  Bytes bytes(36, 0);
  bytes[3 + 4] = 1;
  for (const auto& [step, header, value] : {std::tuple{0x0100, 0x82, 0.0F},
                                            {0x0100, 0x92, 0.0F},
                                            {0x0100, 0x01, 0.0F},
                                            {0x0100, 0xF1, 0.0F},
                                            {0x0100, 0x72, 0x1p-128F},
                                            {0x0100, 0xF3, 0x1.1p-125F},
                                            {0x0008, 0x13, 0.0F},
                                            {0x0000, 0x03, 0.0F},
                                            {0xBF80, 0x42, -0.5F},
                                            {0xBF80, 0x02, -1.0F},
                                            {0x8000, 0x01, 0x1p125F},
                                            {0x7F80, 0x02, kInf},
                                            {0x7F80, 0x12, 0x1.Cp127F},
                                            {0x7FC0, 0x22, kInf},
                                            {0x7FC0, 0x32, 0x1.Cp127F},
                                            {0x3F80, 0x50, 0.0F}}) {
    bytes[0] = static_cast<uint8_t>(step);
    bytes[1] = static_cast<uint8_t>(step >> 8);
    bytes[2] = static_cast<uint8_t>(header);
    EXPECT_EQ(decode(3, bytes, 20)[0], value) << step << " " << header;
  }
  for (const int header : {0x00, 0x02, 0x12, 0x0F, 0xF3}) {  // All of these steps are NaN.
    bytes[0] = 0xFF;
    bytes[1] = 0x7F;
    bytes[2] = static_cast<uint8_t>(header);
    EXPECT_TRUE(std::isnan(decode(3, bytes, 20)[0])) << header;
  }
}

}  // namespace
}  // namespace narrowcast::codec::wire
