// The plain codec of the variable formats against what docs/wire_format.md says of them: sizes, widths, the least
// step that fits, the error of every element, and messages of any bytes.
#include "ops/codec/variable_width.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
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
using test::kLengths;
using test::ModelBlock;
using test::ModelStep;

constexpr float kInf = std::numeric_limits<float>::infinity();

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

  // Of var3 to nearest, blocks of less than half a step are zeros.
  ModelStep model_of(uint32_t step, bool stochastic) const {
    return {scale_value(static_cast<uint16_t>(step)), stochastic, bits_ == 3 && !stochastic ? 4 : 254};
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
    EXPECT_GE(layout.code_bytes, 9 * blocks);  // So that faint blocks fit.
    if (blocks > 0) {
      EXPECT_EQ(variable_layout(bits_, 32 * blocks - 31).bytes, layout.bytes);
      EXPECT_EQ(layout.first_code, 2 + (blocks + 1) / 2);
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

TEST_P(VariableWidth, SaysTheWidthsOfBlocksAndEndsWithZeros) {
  std::set<int> nibbles;
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const VariableLayout layout = variable_layout(bits_, static_cast<int64_t>(x.size()));
    const Bytes bytes = encode(bits_, x, rounding);
    const ModelStep step = model_of(step_of(bytes), stochastic);
    const std::vector<ModelBlock> blocks = test::model_blocks(x, step);
    for (int64_t i = 0; i < layout.blocks; ++i) {
      const int nibble = blocks[static_cast<size_t>(i)].nibble;
      ASSERT_EQ(nibble_at(bytes.data() + 2, i), static_cast<uint32_t>(nibble)) << i;
      nibbles.insert(nibble);
    }
    if (layout.blocks % 2 == 1) {
      EXPECT_EQ(nibble_at(bytes.data() + 2, layout.blocks), 0);
    }
    const auto behind = bytes.begin() + layout.first_code + test::model_bytes(x, step);
    EXPECT_EQ(std::count(behind, bytes.end(), 0), bytes.end() - behind);
  });
  if (!test::kSanitized) {
    EXPECT_EQ(nibbles.size(), 16);  // The inputs have them all.
  }
}

// Each group's follow its words, whose number the widths say.
TEST_P(VariableWidth, SaysTheScalesOfFaintBlocksBehindTheWordsOfTheirGroup) {
  std::set<int> distances;
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const VariableLayout layout = variable_layout(bits_, static_cast<int64_t>(x.size()));
    const Bytes bytes = encode(bits_, x, rounding);
    const std::vector<ModelBlock> blocks = test::model_blocks(x, model_of(step_of(bytes), stochastic));
    auto byte = static_cast<size_t>(layout.first_code);
    for (size_t group = 0; group < blocks.size(); group += 32) {
      const size_t end = std::min(group + 32, blocks.size());
      for (size_t i = group; i < end; ++i) byte += blocks[i].nibble == 0 ? 0 : 4U * (blocks[i].nibble + 1U);
      for (size_t i = group; i < end; ++i) {
        if (blocks[i].nibble != 1) continue;
        ASSERT_EQ(bytes[byte++], blocks[i].distance) << i;
        distances.insert(blocks[i].distance);
      }
    }
  });
  if (!test::kSanitized) {
    EXPECT_TRUE(distances.contains(0));
    EXPECT_TRUE(distances.contains(255));
    EXPECT_GT(distances.size(), 30);                 // At random in var3, too.
    EXPECT_GT(*std::prev(distances.end(), 2), 240);  // Of 254 that there are.
  }
}

TEST_P(VariableWidth, HasAStepAndWidthsOfTheLargestElementsAlone) {
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
    const auto header = variable_layout(bits_, static_cast<int64_t>(x.size())).first_code;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + header, other.begin()));
  });
}

// Half a step, a whole one at random; rounding the product with the inverse moves a tie by 2^-23 of it, or by 2^-22
// where the inverse is subnormal. Of faint blocks with their own scale, which is not above the step. What is lost is
// below the least scale: half of the least step, half of the step in var3 to nearest, or 254 quarters of a power of two
// below the step's, of whose second digits may then be two more.
TEST_P(VariableWidth, IsWithinHalfAStepOfEveryElement) {
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    const Bytes bytes = encode(bits_, x, rounding);
    const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
    if (x.empty()) return;
    const std::vector<ModelBlock> blocks = test::model_blocks(x, model_of(step_of(bytes), stochastic));
    const double step = scale_value(step_of(bytes));
    for (size_t i = 0; i < x.size(); ++i) {
      const ModelBlock& block = blocks[i / 32];
      EXPECT_LE(block.scale, step);
      if (std::isinf(decoded[i]) && std::abs(x[i]) + step / 2 * (stochastic ? 2 : 1) >= 0x1p128) continue;
      const double bound = block.scale * (stochastic ? 1.0 : 0.5) + std::abs(x[i]) * 0x1p-22;
      if (block.nibble == 0) {
        ASSERT_EQ(float_bits(decoded[i]), 0) << i << " " << x[i];
        ASSERT_LT(std::abs(x[i]), std::max(0x1p-101, step * (bits_ == 3 && !stochastic ? 0.5 : 0x1.8p-64))) << i;
      } else {
        ASSERT_LE(std::abs(double{decoded[i]} - x[i]), bound) << i << " " << x[i];
      }
    }
  });
}

// To nearest a faint block's largest element m becomes its scale: of m's first three digits, and so above 0.8 m, or the
// step, if m is above it and below one and a half. At random either that or 0, of a scale less than 1.25 m.
TEST_P(VariableWidth, KeepsBlocksBelowTheStep) {
  int64_t own_scales = 0;
  int64_t of_the_step = 0;
  for_each_input([&](const Floats& x, bool stochastic, const Rounding& rounding) {
    if (x.empty()) return;
    const Bytes bytes = encode(bits_, x, rounding);
    const Floats decoded = decode(bits_, bytes, static_cast<int64_t>(x.size()));
    const std::vector<ModelBlock> blocks = test::model_blocks(x, model_of(step_of(bytes), stochastic));
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].nibble != 1) continue;
      const auto* const begin = x.data() + 32 * i;
      const auto less = [](float a, float b) { return std::abs(a) < std::abs(b); };
      const auto* const end = x.data() + std::min(x.size(), 32 * i + 32);
      const auto at = static_cast<size_t>(std::max_element(begin, end, less) - x.data());
      const double ratio = double{decoded[at]} / x[at];
      const bool is_own = blocks[i].distance != 255;
      (is_own ? own_scales : of_the_step) += 1;
      if (stochastic) {
        ASSERT_TRUE(ratio == 0 || std::abs(decoded[at]) == blocks[i].scale) << at;
        ASSERT_LT(ratio, 1.25) << at;
      } else {
        ASSERT_GT(ratio, is_own ? 0.8 : 1 / 1.5 - 0x1p-22) << at;
        ASSERT_LE(ratio, 1) << at;
      }
    }
  });
  if (!test::kSanitized) {
    EXPECT_GT(own_scales, 0);
    EXPECT_GT(of_the_step, 0);
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
  for (const float zero : {0.0F, -0.0F, 0x1p-102F, -0x1p-149F, 0x1.bfp-102F}) {
    Bytes expected(static_cast<size_t>(variable_layout(bits_, 70).bytes), 0);
    expected[0] = 0x80;
    expected[1] = 0x0D;
    EXPECT_EQ(encode(bits_, Floats(70, zero), {}), expected);
    EXPECT_EQ(encode(bits_, Floats(70, zero), test::kAtRandom), expected);
    for (const float decoded : decode(bits_, expected, 70)) EXPECT_EQ(float_bits(decoded), 0);
  }
}

TEST_P(VariableWidth, KeepsHalfOfTheLeastStep) {
  const Floats x(70, -0x1p-101F);
  for (const Rounding& rounding : {Rounding{}, test::kAtRandom}) {
    const Bytes bytes = encode(bits_, x, rounding);
    EXPECT_EQ(step_of(bytes), kLeastStep);
    EXPECT_EQ(decode(bits_, bytes, 70), x);
  }
  const Bytes below = encode(bits_, Floats(70, 0x1.fffffep-102F), {});
  EXPECT_EQ(decode(bits_, below, 70), Floats(70, 0));
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
        message.data()[1] = 0x3F;  // With which no scale is NaN; and widths some of which fit.
        for (int64_t i = 2; i < layout.first_code; ++i) message.data()[i] &= round % 3 == 1 ? 0x33 : 0x77;
      }
      Floats out(static_cast<size_t>(n));
      decode_variable(bits_, message.data(), n, out.data());
      int64_t end = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = i; i % 1024 == 0 && k < std::min(n, i + 1024); k += 32) {
          const uint32_t nibble = nibble_at(message.data() + 2, k / 32);
          end += nibble == 0 ? 0 : 4 * (nibble + 1) + (nibble == 1 ? 1 : 0);
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
  std::fill_n(bytes.begin() + 2 + 16, 16, uint8_t{0xFF});  // Widths of 16 for the second one.
  const Floats nan = decode(bits_, bytes, 3000);
  for (size_t i = 0; i < 3000; ++i) {
    if (i < 1024) {
      ASSERT_EQ(nan[i], decoded[i]);
    } else {
      ASSERT_TRUE(std::isnan(nan[i])) << i;
    }
  }
}

// The mean of independent numbers in an interval of one step: Hoeffding's inequality, for but one case in 10^9.
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
      if (blocks[k / 32].nibble == 0) continue;
      const double bias = (sum[k] / kMessages - x[k]) / blocks[k / 32].scale;
      EXPECT_LE(std::abs(bias), hoeffding(kMessages, kSize) + 0x1p-9) << k;  // 15 digits of 24 are before the point.
      mean += bias / kSize;
    }
    EXPECT_LE(std::abs(mean), hoeffding(kMessages * kSize, 1) + 0x1p-9);
  }
}

INSTANTIATE_TEST_SUITE_P(All, VariableWidth, ::testing::Values(3, 4, 5, 6));

// Two blocks in 36 bytes have 33 for their codes: 9 of a faint block, and 24 of 6 bits. All of it is read, and no more.
TEST(VariableMessage, MayBeFullToItsLastByte) {
  Bytes bytes(36, 0);
  bytes[1] = 0x40;  // The step is 2.
  bytes[2] = 0x51;
  bytes[3 + 4] = 2;  // Element 1 of the faint block is 1, and its scale 3 quarters of a power of two below 2.
  bytes[3 + 8] = 1;  // Element 0 of the other one is -32.
  bytes[3 + 32] = 3;
  const Floats out = decode(3, bytes, 64);
  for (size_t i = 0; i < 64; ++i) ASSERT_EQ(out[i], i == 1 ? 1.25F : (i == 32 ? -64.0F : 0.0F)) << i;
  for (const uint8_t widths : {0x61, 0x52}) {
    bytes[2] = widths;
    for (const float value : decode(3, bytes, 64)) ASSERT_TRUE(std::isnan(value));
  }
}

// A byte may be more than there is of the step's first bits, and these have its sign.
TEST(VariableMessage, OfAnyStepHasScalesFromItsFirstBits) {
  Bytes bytes(36, 0);
  bytes[2] = 1;
  bytes[3 + 4] = 1;
  for (const auto& [step, distance, scale] : {std::tuple{0x0100, 8, 0.0F},
                                              {0x0100, 9, 0.0F},
                                              {0x0100, 7, 0x1p-128F},
                                              {0x0100, 255, 0x1p-125F},
                                              {0xBF80, 4, -0.5F},
                                              {0x8000, 16, 0x1p125F},
                                              {0x7F80, 1, 0x1.Cp127F}}) {
    bytes[0] = static_cast<uint8_t>(step);
    bytes[1] = static_cast<uint8_t>(step >> 8);
    bytes[3 + 8] = static_cast<uint8_t>(distance);
    EXPECT_EQ(decode(3, bytes, 20)[0], scale) << step << " " << distance;
  }
}

}  // namespace
}  // namespace narrowcast::codec::wire
