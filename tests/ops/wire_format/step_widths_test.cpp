// The extents of blocks, and their widths for a step (ops/codec/variable_headers.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <tuple>

#include "ops/codec/variable_headers.h"
#include "tests/ops/wire_format/step_codes.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::bfloat16_bits;
using test::bfloat16_down;
using test::codes_of;
using test::codes_of_one;
using test::Floats;
using test::has_code;
using test::kGreatestMagnitude;
using test::kInf;
using test::sides_of;
using test::SidesCase;

constexpr uint32_t kEvery = test::kSanitized ? 61 : 1;  // Every kEvery-th step is tested.

TEST(BlockExtent, HasBothSidesRoundedUpToBfloat16) {
  for (const auto& [positive, negative, bits] : {std::tuple{0U, 0U, 0U},
                                                 {0x3F800000U, 0U, 0xBF800000U},
                                                 {0U, 0x3F800000U, 0x3F800000U},
                                                 {0x3F800000U, 0x3F800000U, 0x3F803F80U},
                                                 {0x3F800001U, 0x3F80FFFFU, 0x3F813F81U},
                                                 {0x3F810001U, 0x3F810000U, 0xBF823F81U},
                                                 {1U, 0U, 0x80010000U},
                                                 {0U, 0x007F0001U, 0x00800000U},
                                                 {0x7F7FFFFFU, 0x7F7F0000U, 0xFF807F7FU},
                                                 {0x7F800000U, 0x7FC00000U, 0x7F807F80U},
                                                 {0x7FFFFFFFU, 0U, 0xFF800000U}}) {
    const BlockExtent extent = BlockExtent::of(positive, negative);
    EXPECT_EQ(extent.bits, bits);
    EXPECT_EQ(extent.larger(), bits & 0x7FFF0000U);
    EXPECT_EQ(extent.smaller(), bits << 16);
    EXPECT_EQ(extent.is_positive(), bits >> 31 != 0);
  }
  const Floats x{0.5F, -0.0F, -0x1.000002p1F, 0x1.FFp0F};
  EXPECT_EQ(extent_of_block(x.data(), 4, 0).bits, 0x40014000U);
  EXPECT_EQ(extent_of_block(x.data(), 2, 0).bits, 0xBF000000U);
}

// Expects the same width whichever side is positive.
void expect_widths(const StepCodes& codes, std::span<const SidesCase> cases) {
  for (const auto& [larger, smaller, width] : cases) {
    EXPECT_EQ(codes.width(sides_of(larger, smaller)), width) << larger << " " << smaller;
    EXPECT_EQ(codes.width(sides_of(smaller, larger)), width) << larger << " " << smaller;
  }
}

// For a step of 1, the greatest bfloat16 of each width, and the next one. A number gets the outermost code up to a half
// beyond it, less a 128th: B + z + 1/2 for the larger side and B - z - 1/2 for the smaller one.
TEST(StepCodes, HaveTheWidthsThatHoldBothSidesToNearest) {
  constexpr SidesCase kCases[] = {
      {2.484375F, 0.0F, 2U},
      {2.484375F, 1.4921875F, 2U},
      {2.5F, 0.0F, 3U},
      {1.5F, 1.5F, 3U},
      {5.46875F, 2.484375F, 3U},  // With a zero point of 1.
      {4.46875F, 3.484375F, 3U},  // Without a zero point.
      {5.5F, 0.0F, 4U},
      {4.5F, 2.5F, 4U},
      {3.5F, 3.5F, 4U},
      {10.4375F, 5.46875F, 4U},
      {8.4375F, 7.46875F, 4U},
      {8.5F, 5.5F, 5U},
      {20.375F, 11.4375F, 5U},
      {16.375F, 15.4375F, 5U},
      {40.25F, 23.375F, 6U},
      {80.0F, 47.25F, 7U},
      {64.0F, 63.25F, 7U},
      {80.5F, 0.0F, 8U},
      {65.0F, 47.5F, 8U},
      {128.0F, 127.0F, 8U},
      {128.0F, 128.0F, 9U},
      {129.0F, 0.0F, 9U},
      {255.0F, 255.0F, 9U},
      {256.0F, 0.0F, 10U},
      {16320.0F, 0.0F, kMostWidth},
  };
  expect_widths(codes_of_one(false), kCases);
}

// At random, a number gets the outermost code up to that code, less a 128th.
TEST(StepCodes, HaveTheWidthsThatHoldBothSidesAtRandom) {
  constexpr SidesCase kCases[] = {
      {1.9921875F, 0.9921875F, 2U}, {2.0F, 0.0F, 3U},     {1.0F, 1.0F, 3U},    {4.96875F, 1.9921875F, 3U},
      {3.984375F, 2.984375F, 3U},   {5.0F, 0.0F, 4U},     {4.0F, 2.0F, 4U},    {127.5F, 126.5F, 8U},
      {128.0F, 0.0F, 9U},           {254.0F, 254.0F, 9U}, {255.0F, 0.0F, 10U},
  };
  expect_widths(codes_of_one(true), kCases);
}

TEST(StepCodes, HaveNoCodeBeyondThoseOfTheGreatestWidth) {
  EXPECT_TRUE(codes_of_one(false).has_code(16383.49F));
  EXPECT_FALSE(codes_of_one(false).has_code(16383.5F));
  EXPECT_TRUE(codes_of_one(true).has_code(16382.99F));
  EXPECT_FALSE(codes_of_one(true).has_code(16383));
  EXPECT_FALSE(codes_of_one(false).has_code(kInf));
  EXPECT_FALSE(codes_of_one(true).has_code(kInf));
}

TEST(StepCodes, MakeFaintBlocksOfAllMagnitudesUpToTheStep) {
  for (uint32_t bits = kLeastStep; bits <= kGreatestStep; ++bits) {
    const float step = scale_value(static_cast<uint16_t>(bits));
    for (const bool stochastic : {false, true}) {
      const StepCodes codes = codes_of(bits, stochastic);
      ASSERT_GT(codes.inverse, 0);
      ASSERT_TRUE(std::isfinite(codes.inverse));
      const float below = scale_value(static_cast<uint16_t>(bits - (stochastic ? 2 : 1)));
      ASSERT_EQ(codes.width(sides_of(below, below)), kFaintWidth) << bits;
      if (step < 0x1p126F) {
        ASSERT_EQ(codes.width(sides_of(2 * below, below)), kFaintWidth) << bits;
        ASSERT_EQ(codes.width(sides_of(2 * below, 0)), kFaintWidth) << bits;
        ASSERT_EQ(codes.width(sides_of(0, 2.5F * step)), 3U) << bits;
        ASSERT_EQ(codes.width(sides_of(1.5F * step, 1.51F * step)), 3U) << bits;
      }
    }
  }
}

TEST(StepCodes, OfTheGreatestStepMakeFaintBlocksOfAllMagnitudes) {
  for (const bool stochastic : {false, true}) {
    const StepCodes codes = codes_of(kGreatestStep, stochastic);
    for (const float other : {0.0F, 1.0F, 0x1p127F, kGreatestMagnitude}) {
      EXPECT_EQ(float_bits(kGreatestMagnitude), kGreatestMagnitudeBits);
      EXPECT_TRUE(has_code(codes, sides_of(other, kGreatestMagnitude)));
      EXPECT_EQ(codes.width(sides_of(other, kGreatestMagnitude)), kFaintWidth);
      EXPECT_EQ(codes.width(sides_of(kGreatestMagnitude, other)), kFaintWidth);
    }
  }
}

// To nearest, blocks 6.75 octaves below the step become zeros.
TEST(StepCodes, MakeZerosOfBlocksFarBelow) {
  const auto width = [](bool stochastic, float largest) {
    return codes_of(bfloat16_bits(1.25F), stochastic).width(sides_of(largest, 0));
  };
  EXPECT_EQ(width(false, 0x1.8p-7F), kFaintWidth);
  EXPECT_EQ(width(false, 0x1.7E0002p-7F), kFaintWidth);  // Rounded up.
  EXPECT_EQ(width(false, 0x1.7Ep-7F), 0U);
  EXPECT_EQ(width(true, 0x1p-101F), kFaintWidth);
  EXPECT_EQ(width(true, 0x1.FE0002p-102F), kFaintWidth);
  EXPECT_EQ(width(true, 0x1.FEp-102F), 0U);
}

// Magnitudes at which blocks change, and others.
Floats some_magnitudes() {
  Floats magnitudes{0, 0x1p-149F, 0x1p-126F, kGreatestMagnitude};
  for (int exponent = -104; exponent < 127; exponent += exponent < -97 || exponent > 124 ? 1 : 11) {
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
      for (const float part : {0.0F, 0.3F, 0.5F, 0.55F, 0.61F, 0.8F, 1.0F}) {
        const BlockExtent extent = sides_of(largest * part, largest);
        uint32_t before = kMostWidth;
        bool had_code = false;
        for (uint32_t bits = kLeastStep; bits <= kGreatestStep; bits += kEvery) {
          const StepCodes codes = codes_of(bits, stochastic);
          if (!has_code(codes, extent)) {
            ASSERT_FALSE(had_code) << largest << " " << part << " " << bits;
            continue;
          }
          had_code = true;
          const uint32_t width = codes.width(extent);
          ASSERT_LE(width, before) << largest << " " << part << " " << bits;
          before = width;
        }
        EXPECT_LE(codes_of(kGreatestStep, stochastic).width(extent), kFaintWidth) << largest << " " << part;
      }
    }
  }
}

// One side grows by one bfloat16 at a time, while the other side stays. The larger side may change.
TEST(StepCodes, GiveABlockNoFewerBytesWithAGreaterElement) {
  std::mt19937 engine(3);
  for (int i = 0; i < (test::kSanitized ? 20 : 1000); ++i) {
    const auto bits = std::uniform_int_distribution<uint32_t>(kLeastStep, kGreatestStep)(engine);
    const StepCodes codes = codes_of(bits, i % 2 == 0);
    const double octaves = std::uniform_real_distribution<double>(-9, 8)(engine);
    const float other = i % 5 == 0 ? 0 : bfloat16_down(std::min(0x1p127, scale_value(codes.step) * std::exp2(octaves)));
    uint32_t before = 0;
    for (uint32_t side = bits > 0x480 ? bits - 0x480 : 0; side <= 0x7F7D && side < bits + 0x780; ++side) {
      const float growing = scale_value(static_cast<uint16_t>(side));
      const BlockExtent extent = i % 4 < 2 ? sides_of(other, growing) : sides_of(growing, other);
      if (!has_code(codes, extent)) break;
      const uint32_t width = codes.width(extent);
      ASSERT_GE(width, before) << growing << " " << other << " " << bits;
      before = width;
    }
  }
}

}  // namespace
}  // namespace narrowcast::codec::wire
