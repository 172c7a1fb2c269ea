// How a step makes widths, scales and codes of numbers (ops/codec/variable_width.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "ops/codec/variable_width.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::Floats;

constexpr float kGreatestMagnitude = test::kGreatestBfloat16;

uint32_t width_of(const StepCodes& step, float largest) { return step.width(float_bits(largest)); }

TEST(StepCodes, MakeFaintBlocksOfAllMagnitudesUpToTheStep) {
  for (uint32_t bits = kLeastStep; bits <= kGreatestStep; ++bits) {
    const StepCodes nearest = StepCodes::of(static_cast<uint16_t>(bits), false, 4);
    const StepCodes stochastic = StepCodes::of(static_cast<uint16_t>(bits), true, 4);
    ASSERT_GT(nearest.inverse, 0);
    ASSERT_TRUE(std::isfinite(nearest.inverse));
    ASSERT_EQ(width_of(nearest, nearest.step), kFaintWidth) << bits;
    // Subnormal inverses may be rounded up by so much that the product with the step is above 1.
    if (nearest.inverse >= std::numeric_limits<float>::min() || bits == kGreatestStep) {
      ASSERT_EQ(width_of(stochastic, stochastic.step), kFaintWidth) << bits;
    }
    ASSERT_EQ(width_of(stochastic, scale_value(static_cast<uint16_t>(bits - 1))), kFaintWidth) << bits;
  }
}

TEST(StepCodes, HaveTheWidthOfTheDigitsOfTheLargestCode) {
  const StepCodes nearest{1, 1, false};
  const StepCodes stochastic{1, 1, true};
  for (int32_t code = 2; code <= 32767; ++code) {
    uint32_t digits = 0;
    while (code >> digits > 0) ++digits;
    EXPECT_EQ(width_of(nearest, static_cast<float>(code)), digits + 1);
    EXPECT_EQ(width_of(stochastic, static_cast<float>(code)), digits + 1);
    EXPECT_EQ(width_of(stochastic, static_cast<float>(code) - 0.75F), digits + 1);
  }
  EXPECT_EQ(width_of(nearest, 1.4999999F), kFaintWidth);
  EXPECT_EQ(width_of(nearest, 1.5F), 3U);  // A tie, and 2 is even.
  EXPECT_EQ(width_of(nearest, 2.5F), 3U);
  EXPECT_EQ(width_of(stochastic, 1.0000001F), 3U);
  EXPECT_TRUE(nearest.has_code(32767.25F));
  EXPECT_FALSE(nearest.has_code(32767.5F));
  EXPECT_TRUE(stochastic.has_code(32767));
  EXPECT_FALSE(stochastic.has_code(32767.25F));
  EXPECT_FALSE(nearest.has_code(std::numeric_limits<float>::infinity()));
}

// The distance that travels, or -1 of a block of zeros.
int distance_of(const StepCodes& step, float largest) {
  return width_of(step, largest) == 0 ? -1 : static_cast<int>(step.distance_of(step.own_scale(float_bits(largest))));
}

TEST(StepCodes, SayHowFarTheScalesOfFaintBlocksAreBelowThem) {
  const StepCodes nearest{1.3F, 1 / 1.3F, false};  // As a scale it is 1.25.
  const StepCodes stochastic{1.3F, 1 / 1.3F, true};
  for (const auto& [largest, to_nearest, at_random] : {std::tuple{1.9F, 255, 0},
                                                       {1.5F, 255, 0},
                                                       {1.49F, 0, 255},
                                                       {1.3F, 0, 255},
                                                       {1.26F, 0, 255},
                                                       {1.25F, 0, 0},
                                                       {1.2499999F, 1, 0},
                                                       {1.0F, 1, 1},
                                                       {0.99999994F, 2, 1},
                                                       {0.876F, 2, 1},
                                                       {0.875F, 2, 2},
                                                       {0x1p-62F, 249, 249},
                                                       {0x1p-63F, 253, 253},
                                                       {0x1.cp-64F, 254, 254},
                                                       {0x1.a00002p-64F, -1, 254},
                                                       {0x1.8p-64F, -1, -1},
                                                       {0x1.bffffep-64F, -1, 254},
                                                       {0.0F, -1, -1}}) {
    SCOPED_TRACE(largest);
    if (width_of(nearest, largest) <= kFaintWidth) {
      EXPECT_EQ(distance_of(nearest, largest), to_nearest);
    }
    if (width_of(stochastic, largest) <= kFaintWidth) {
      EXPECT_EQ(distance_of(stochastic, largest), at_random);
    }
  }
  EXPECT_EQ(nearest.faint(kStepItself).step, 1.3F);
  EXPECT_EQ(nearest.faint(0).step, 1.25F);
  EXPECT_EQ(nearest.faint(4).step, 0.625F);
  EXPECT_EQ(nearest.faint(254).step, 0x1.cp-64F);
  const StepCodes least = StepCodes::of(kLeastStep, false, 4);
  EXPECT_EQ(width_of(least, 0x1p-101F), kFaintWidth);
  EXPECT_EQ(width_of(least, 0x1.fffffep-102F), 0U);
}

// At random a faint block's codes are rounded up to 1, and not to 2: its scale is not below its largest element.
TEST(StepCodes, OfFaintBlocksLeaveNoneMoreThanOne) {
  for (const uint32_t bits : {uint32_t{kLeastStep}, 0x3FA3U, 0x5432U, uint32_t{kGreatestStep}}) {
    const StepCodes step = StepCodes::of(static_cast<uint16_t>(bits), true, 4);
    for (uint32_t distance = 0; distance < kStepItself; ++distance) {
      const StepCodes faint = step.faint(distance);
      if (float_bits(faint.step) >> kOwnScaleShift < step.least_own_scale()) continue;
      ASSERT_LE(faint.step, step.step);
      ASSERT_LE(faint.step * faint.inverse, 1);
      ASSERT_EQ(step.distance_of(step.own_scale(float_bits(faint.step))), distance);
    }
  }
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
      uint32_t before = bytes_of_width(kMostWidth);
      for (uint32_t bits = kLeastStep; bits <= kGreatestStep; ++bits) {
        const StepCodes step = StepCodes::of(static_cast<uint16_t>(bits), stochastic, 4);
        if (!step.has_code(largest * step.inverse)) {
          ASSERT_EQ(before, bytes_of_width(kMostWidth)) << largest << " " << step.step;
          continue;
        }
        const uint32_t bytes = bytes_of_width(width_of(step, largest));
        ASSERT_LE(bytes, before) << largest << " " << step.step;
        before = bytes;
      }
      EXPECT_LE(before, 9U) << largest;  // With the greatest step all blocks are faint.
    }
  }
}

TEST(StepCodes, GiveABlockNoFewerBytesWithAGreaterElement) {
  const Floats magnitudes = some_magnitudes();
  for (const bool stochastic : {false, true}) {
    for (uint32_t bits = kLeastStep; bits <= kGreatestStep; bits += test::kSanitized ? 61 : 1) {
      const StepCodes step = StepCodes::of(static_cast<uint16_t>(bits), stochastic, 4);
      uint32_t before = 0;
      for (const float largest : magnitudes) {
        if (!step.has_code(largest * step.inverse)) break;
        const uint32_t bytes = bytes_of_width(width_of(step, largest));
        ASSERT_GE(bytes, before) << largest << " " << step.step;
        before = bytes;
      }
    }
  }
}

TEST(VariableCode, GoesToTheNeighboursAtRandom) {
  for (const float y : {-3.25F, 0.0F, -0x1p-30F, 0x1p-30F, 7.0F, -7.0F, 32766.998F, -32766.998F}) {
    EXPECT_EQ(variable_code(y, 0), static_cast<int32_t>(std::floor(y)) + (y == -0x1p-30F ? 1 : 0)) << y;
    EXPECT_EQ(variable_code(y, ~0U), static_cast<int32_t>(y == 0x1p-30F ? 0 : std::ceil(y))) << y;
  }
  EXPECT_EQ(variable_code(2.5F), 2);
  EXPECT_EQ(variable_code(-3.5F), -4);
}

// With 3 bits there are faint blocks of half a step and more alone, but for codes that are rounded at random.
TEST(StepCodes, OfThreeBitsMakeZerosOfBlocksBelowHalfAStep) {
  const auto step = static_cast<uint16_t>(float_bits(1.25F) >> 16);
  const StepCodes nearest = StepCodes::of(step, false, 3);
  EXPECT_EQ(width_of(nearest, 0.625F), kFaintWidth);
  EXPECT_EQ(width_of(nearest, 0.62499994F), 0U);
  EXPECT_EQ(width_of(nearest, 1.875F), 3U);
  EXPECT_EQ(width_of(StepCodes::of(step, false, 4), 0.62499994F), kFaintWidth);
  EXPECT_EQ(width_of(StepCodes::of(step, true, 3), 0x1p-60F), kFaintWidth);
}

}  // namespace
}  // namespace narrowcast::codec::wire
