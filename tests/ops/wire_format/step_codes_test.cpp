// How a step makes widths, headers and codes of numbers (ops/codec/variable_width.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "ops/codec/variable_width.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/ops/wire_format/variable_model.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::Floats;
using test::kInf;

constexpr float kGreatestMagnitude = test::kGreatestBfloat16;
constexpr uint32_t kEvery = test::kSanitized ? 61 : 1;  // Of the steps one.

StepCodes codes_of(uint32_t step, bool stochastic) { return StepCodes::of(static_cast<uint16_t>(step), stochastic); }

uint32_t bfloat16_bits(float step) { return float_bits(step) >> 16; }

uint32_t width_of(const StepCodes& step, float largest) { return step.width(float_bits(largest)); }

uint32_t header_of(const StepCodes& step, float largest) { return step.header(float_bits(largest)); }

bool has_code(const StepCodes& step, float largest) { return step.has_code(largest * step.inverse); }

// Of a faint block, by how many quarters of an octave it is below the step.
uint32_t faint_header(int quarters) {
  return static_cast<uint32_t>(quarters < 16 ? 16 * quarters + 2 : 16 * (quarters - 16) + 1);
}

// The greatest code that the number can get.
int32_t greatest_code(const StepCodes& step, float largest, float of_block) {
  const float y = largest * (1 / of_block);
  return step.stochastic ? variable_code(y, ~0U) : variable_code(y);
}

TEST(StepCodes, MakeFaintBlocksOfAllMagnitudesUpToTheStep) {
  for (uint32_t bits = kLeastStep; bits <= kGreatestStep; ++bits) {
    const float step = scale_value(static_cast<uint16_t>(bits));
    for (const bool stochastic : {false, true}) {
      const StepCodes codes = codes_of(bits, stochastic);
      ASSERT_GT(codes.inverse, 0);
      ASSERT_TRUE(std::isfinite(codes.inverse));
      // Subnormal inverses may be rounded up by so much that the product with the step is above 1.
      if (!stochastic || codes.inverse >= std::numeric_limits<float>::min() || bits == kGreatestStep) {
        ASSERT_EQ(width_of(codes, step), kFaintWidth) << bits;
      }
      ASSERT_EQ(width_of(codes, scale_value(static_cast<uint16_t>(bits - 1))), kFaintWidth) << bits;
    }
  }
}

TEST(StepCodes, HaveTheWidthOfTheDigitsOfTheLargestCode) {
  const StepCodes nearest = codes_of(bfloat16_bits(1), false);
  const StepCodes stochastic = codes_of(bfloat16_bits(1), true);
  for (int32_t code = 2; code <= 16383; ++code) {
    uint32_t digits = 0;
    while (code >> digits > 0) ++digits;
    EXPECT_EQ(width_of(nearest, static_cast<float>(code)), digits + 1);
    EXPECT_EQ(width_of(stochastic, static_cast<float>(code)), digits + 1);
    EXPECT_EQ(width_of(stochastic, static_cast<float>(code) - 0.75F), digits + 1);
  }
  EXPECT_EQ(width_of(nearest, 1.4999999F), kFaintWidth);
  EXPECT_EQ(width_of(nearest, 1.5F), 3U);  // A tie, and 2 is even.
  EXPECT_EQ(width_of(nearest, 2.5F), 3U);
  EXPECT_EQ(width_of(nearest, 16383.499F), kMostWidth);
  EXPECT_EQ(width_of(stochastic, 1), kFaintWidth);
  EXPECT_EQ(width_of(stochastic, 1.0000001F), 3U);
  EXPECT_TRUE(nearest.has_code(16383.499F));
  EXPECT_FALSE(nearest.has_code(16383.5F));
  EXPECT_TRUE(stochastic.has_code(16383));
  EXPECT_FALSE(stochastic.has_code(16383.001F));
  EXPECT_FALSE(nearest.has_code(kInf));
  EXPECT_FALSE(stochastic.has_code(kInf));
}

// The product of such a step and the most that a faint block's element may be is a float32, with which the step is the
// least that can be. The one above it needs a step of a quarter more.
TEST(StepCodes, SayHowFarTheStepsOfFaintBlocksAreBelowThem) {
  for (const bool stochastic : {false, true}) {
    const float most = stochastic ? 0.984375F : 1.484375F;
    for (const uint32_t bits :
         {uint32_t{kLeastStep}, kLeastStep + 1U, kLeastStep + 0x55U, kLeastStep + 0x1A0U, kLeastStep + 0x37FU,
          kLeastStep + 0x380U, kLeastStep + 0x381U, bfloat16_bits(1), bfloat16_bits(1.25F), bfloat16_bits(1.3F),
          bfloat16_bits(1.75F), bfloat16_bits(0x1.FEp0F), bfloat16_bits(0x1p126F), uint32_t{kGreatestStep}}) {
      const StepCodes codes = codes_of(bits, stochastic);
      const double step = test::octaves(scale_value(static_cast<uint16_t>(bits)));
      const int farthest = static_cast<int>(std::min(31.0, std::floor(4 * (step + 101))));
      const double least = stochastic ? -101 : std::max(-101.0, step - 31.0 / 4);
      for (int quarters = 0; quarters <= 32; ++quarters) {
        const auto limit = static_cast<float>(test::at_octaves(step - quarters / 4.0) * most);
        if (limit > kGreatestMagnitude) continue;
        SCOPED_TRACE(::testing::Message() << stochastic << " " << bits << " " << limit);
        const auto expect = [&](float largest, int distance) {
          const bool is_zero = test::octaves(largest) < least;
          ASSERT_EQ(width_of(codes, largest), is_zero ? 0 : kFaintWidth);
          ASSERT_EQ(header_of(codes, largest), is_zero ? 0 : faint_header(std::min(distance, farthest)));
        };
        expect(std::nextafter(limit, 0.0F), quarters);
        expect(limit, quarters);
        expect(std::nextafter(limit, kInf), std::max(quarters - 1, 0));
      }
      const auto limit = static_cast<float>(test::at_octaves(least));
      EXPECT_EQ(width_of(codes, limit), kFaintWidth);
      EXPECT_EQ(header_of(codes, limit) & 15, farthest > 15 ? 1 : 2);
      EXPECT_EQ(header_of(codes, std::nextafter(limit, 0.0F)), 0);
    }
    EXPECT_EQ(header_of(codes_of(kLeastStep, stochastic), 0), 0);
    EXPECT_EQ(header_of(codes_of(kGreatestStep, stochastic), 0), 0);
  }
}

// To nearest of those 7.75 octaves below the step.
TEST(StepCodes, MakeZerosOfBlocksFarBelow) {
  const uint32_t step = bfloat16_bits(1.25F);
  EXPECT_EQ(width_of(codes_of(step, false), 0x1.8p-8F), kFaintWidth);
  EXPECT_EQ(width_of(codes_of(step, false), 0x1.7ffffep-8F), 0U);
  EXPECT_EQ(width_of(codes_of(step, true), 0x1p-101F), kFaintWidth);
  EXPECT_EQ(width_of(codes_of(step, true), 0x1.fffffep-102F), 0U);
}

// Those at which the width begins and ends and headers change, the float32 beside them, and some between.
Floats magnitudes_of_width(uint32_t width, bool stochastic, float step, std::mt19937& engine) {
  const double end = std::ldexp(1, static_cast<int>(width) - 1);  // Codes are below it, and not below half of it.
  std::vector<double> over_step{end / 2 - 1, end / 2 - 0.5, end / 2, end / 2 + 0.25, end * 0.75, end - 1, end - 0.5};
  over_step.push_back(test::most_of_width(static_cast<int>(width), stochastic));
  for (int i = 0; i < 4; ++i) over_step.push_back(std::uniform_real_distribution<double>(end / 2 - 1, end)(engine));
  Floats magnitudes;
  for (const double y : over_step) {
    const auto magnitude = static_cast<float>(y * step);
    for (const float direction : {0.0F, magnitude, kInf}) magnitudes.push_back(std::nextafter(magnitude, direction));
  }
  return magnitudes;
}

// With one a sixteenth of an octave less, the element would be less than a 64th below what the width's codes hold, or
// beyond. float64 holds that product; and that the least step is rounded once to float32 is all that is not exact.
TEST(StepCodes, GiveABlockTheLeastStepWithWhichItsLargestElementHasACodeOfItsWidth) {
  std::mt19937 engine(7);
  int64_t blocks[16] = {};
  for (uint32_t bits = kLeastStep; bits <= kGreatestStep; bits += test::kSanitized ? 991 : 13) {
    const double step = scale_value(static_cast<uint16_t>(bits));
    for (const bool stochastic : {false, true}) {
      const StepCodes codes = codes_of(bits, stochastic);
      for (uint32_t width = 3; width <= kMostWidth; ++width) {
        const double most = test::most_of_width(static_cast<int>(width), stochastic);
        for (const float largest : magnitudes_of_width(width, stochastic, static_cast<float>(step), engine)) {
          if (largest > kGreatestMagnitude || !has_code(codes, largest) || width_of(codes, largest) != width) continue;
          const uint32_t header = header_of(codes, largest);
          const uint32_t upper = header >> 4;
          ASSERT_EQ(header & 15, width);
          const double own = test::at_octaves(test::octaves(step) - upper / 16.0);
          ASSERT_EQ(step_of_block(codes.step, header), own);
          ASSERT_LT(greatest_code(codes, largest, static_cast<float>(own)), 1 << (width - 1)) << largest << " " << step;
          if (upper > 0) {
            ASSERT_LE(largest / own, most * (1 + 0x1p-24)) << largest << " " << step;
          }
          if (upper < 15) {
            const double less = test::at_octaves(test::octaves(step) - (upper + 1) / 16.0);
            ASSERT_GT(largest, most * less) << step;  // As they are: float64 holds the product.
          }
          ++blocks[upper];
        }
      }
    }
  }
  EXPECT_GT(*std::min_element(std::begin(blocks), std::end(blocks)), 0);
}

// Widths and magnitudes at which blocks change, and others.
Floats some_magnitudes() {
  Floats magnitudes{0, 0x1p-149F, 0x1p-126F, kGreatestMagnitude};
  for (int exponent = -104; exponent < 128; exponent += exponent < -97 || exponent > 124 ? 1 : 11) {
    for (const float digits : {1.0F, 1.0000001F, 1.25F, 1.3F, 1.4999999F, 1.5F, 1.75F, 1.9921875F}) {
      magnitudes.push_back(std::ldexp(digits, exponent));
    }
  }
  std::sort(magnitudes.begin(), magnitudes.end());
  return magnitudes;
}

TEST(StepCodes, GiveABlockNoMoreBytesWithAGreaterStep) {
  for (const bool stochastic : {false, true}) {
    for (const float largest : some_magnitudes()) {
      uint32_t before = kMostWidth;
      bool had_code = false;
      for (uint32_t bits = kLeastStep; bits <= kGreatestStep; ++bits) {
        const StepCodes codes = codes_of(bits, stochastic);
        if (!has_code(codes, largest)) {
          ASSERT_FALSE(had_code) << largest << " " << bits;
          continue;
        }
        had_code = true;
        const uint32_t width = width_of(codes, largest);
        ASSERT_LE(width, before) << largest << " " << bits;
        before = width;
      }
      EXPECT_TRUE(had_code) << largest;
      EXPECT_LE(before, kFaintWidth) << largest;  // With the greatest step all blocks are faint.
    }
  }
}

TEST(StepCodes, GiveABlockNoFewerBytesWithAGreaterElement) {
  const Floats magnitudes = some_magnitudes();
  for (const bool stochastic : {false, true}) {
    for (uint32_t bits = kLeastStep; bits <= kGreatestStep; bits += kEvery) {
      const StepCodes codes = codes_of(bits, stochastic);
      uint32_t before = 0;
      for (const float largest : magnitudes) {
        if (!has_code(codes, largest)) break;
        const uint32_t width = width_of(codes, largest);
        ASSERT_GE(width, before) << largest << " " << bits;
        before = width;
      }
    }
  }
}

// With it no element has a code that its width does not hold, and to nearest the largest one is not lost.
TEST(StepCodes, GiveABlockAStepThatIsNotAboveTheirsAndHasAnInverse) {
  const Floats magnitudes = some_magnitudes();
  for (const bool stochastic : {false, true}) {
    for (uint32_t bits = kLeastStep; bits <= kGreatestStep; bits += kEvery) {
      const StepCodes codes = codes_of(bits, stochastic);
      for (const float largest : magnitudes) {
        if (!has_code(codes, largest)) break;
        const uint32_t header = header_of(codes, largest);
        const uint32_t width = width_of(codes, largest);
        ASSERT_EQ(width_of_header(header), width);
        if (width == 0) {
          ASSERT_EQ(header, 0);
          continue;
        }
        const float own = step_of_block(codes.step, header);
        ASSERT_LE(own, scale_value(codes.step)) << largest << " " << bits;
        ASSERT_GE(own, 0x1p-101F) << largest << " " << bits;
        ASSERT_GT(1 / own, 0);
        ASSERT_TRUE(std::isfinite(1 / own));
        const int32_t code = greatest_code(codes, largest, own);
        ASSERT_LT(code, 1 << (width - 1)) << largest << " " << bits;
        ASSERT_GE(code, stochastic ? 0 : 1) << largest << " " << bits;
      }
    }
  }
}

// The step may be anything and have a sign, and nothing is below 0.
TEST(StepOfBlock, IsAsFarBelowAnyStepAsItsHeaderSays) {
  for (uint32_t header = 0; header < 256; ++header) {
    const int64_t lower = header % 16;
    const int64_t upper = header / 16;
    const int64_t distance = lower > 2 ? upper * 0x80000 : (lower == 1 ? 16 + upper : upper) * 0x200000;
    ASSERT_EQ(width_of_header(header), lower == 1 ? 2 : lower);
    for (int64_t step = 0; step < 0x10000; step += kEvery) {
      const float own = step_of_block(static_cast<uint16_t>(step), header);
      ASSERT_EQ(float_bits(own), std::max<int64_t>(step * 0x10000 - distance, 0)) << step << " " << header;
    }
  }
  for (const auto& [step, header, own] : {std::tuple{0x3F80U, 0x02U, 1.0F},
                                          {0x3F80U, 0x12U, 0.875F},
                                          {0x3F80U, 0xF2U, 0x1.4p-4F},
                                          {0x3F80U, 0x01U, 0x1p-4F},
                                          {0x3F80U, 0xF1U, 0x1.4p-8F},
                                          {0x3F80U, 0x13U, 0x1.Fp-1F},
                                          {0x3F80U, 0xFFU, 0x1.1p-1F},
                                          {0x3FA0U, 0x2FU, 1.125F},
                                          {0xBF80U, 0x42U, -0.5F},
                                          {0x8000U, 0x01U, 0x1p125F},
                                          {0x7F80U, 0x12U, 0x1.Cp127F},
                                          {0x7FC0U, 0x22U, kInf},
                                          {0x0100U, 0x72U, 0x1p-128F},
                                          {0x0100U, 0x82U, 0.0F},
                                          {0x0100U, 0xF1U, 0.0F},
                                          {0x0008U, 0x13U, 0.0F},
                                          {0x0009U, 0x1FU, 0x1p-133F},
                                          {0x0000U, 0x03U, 0.0F}}) {
    EXPECT_EQ(step_of_block(static_cast<uint16_t>(step), header), own) << step << " " << header;
  }
  EXPECT_TRUE(std::isnan(step_of_block(kNanScale, 0)));
  EXPECT_TRUE(std::isnan(step_of_block(kNanScale, 0x7F)));
}

TEST(VariableCode, GoesToTheNeighboursAtRandom) {
  for (const float y : {-3.25F, 0.0F, -0x1p-30F, 0x1p-30F, 7.0F, -7.0F, 16382.998F, -16382.998F}) {
    EXPECT_EQ(variable_code(y, 0), static_cast<int32_t>(std::floor(y)) + (y == -0x1p-30F ? 1 : 0)) << y;
    EXPECT_EQ(variable_code(y, ~0U), static_cast<int32_t>(y == 0x1p-30F ? 0 : std::ceil(y))) << y;
  }
  EXPECT_EQ(variable_code(2.5F), 2);
  EXPECT_EQ(variable_code(-3.5F), -4);
  EXPECT_EQ(variable_code(-16383.499F), -16383);
}

}  // namespace
}  // namespace narrowcast::codec::wire
