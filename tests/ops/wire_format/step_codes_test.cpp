// How a step makes widths, headers and codes of numbers (ops/codec/variable_width.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/codec/variable_width.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/ops/wire_format/variable_model.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::Floats;
using test::kGreatestMagnitude;
using test::kInf;
using test::ModelBlock;
using test::ModelHeader;
using test::ModelSides;
using test::ModelStep;

constexpr uint32_t kEvery = test::kSanitized ? 61 : 1;  // Of the steps one.

StepCodes codes_of(uint32_t step, bool stochastic) { return StepCodes::of(static_cast<uint16_t>(step), stochastic); }

ModelStep model_of(const StepCodes& codes) { return {scale_value(codes.step), codes.stochastic}; }

uint32_t bfloat16_bits(float step) { return float_bits(step) >> 16; }

float bfloat16_down(double number) { return float_of_bits(float_bits(static_cast<float>(number)) & 0xFFFF0000U); }
float next_bfloat16(float number) { return float_of_bits(float_bits(number) + 0x10000U); }

// Of numbers from -negative to positive.
BlockExtent sides_of(float negative, float positive) {
  return BlockExtent::of(float_bits(positive), float_bits(negative));
}

bool has_code(const StepCodes& step, BlockExtent extent) {
  return step.has_code(float_of_bits(extent.larger()) * step.inverse);
}

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

// The greatest bfloat16 of a width and the next, over a step of 1. To nearest numbers of a half more than the outermost
// code have it, less a 128th: a larger one of B + z + 1/2 and a smaller one of B - z - 1/2.
TEST(StepCodes, HaveTheWidthsThatHoldBothSides) {
  const auto expect = [](bool stochastic, float larger, float smaller, uint32_t width) {
    const StepCodes codes = codes_of(bfloat16_bits(1), stochastic);
    EXPECT_EQ(codes.width(sides_of(larger, smaller)), width) << larger << " " << smaller << " " << stochastic;
    EXPECT_EQ(codes.width(sides_of(smaller, larger)), width) << larger << " " << smaller << " " << stochastic;
  };
  for (const auto& [larger, smaller, width] : {std::tuple{2.484375F, 0.0F, 2U},
                                               {2.484375F, 1.4921875F, 2U},
                                               {2.5F, 0.0F, 3U},
                                               {1.5F, 1.5F, 3U},
                                               {5.46875F, 2.484375F, 3U},  // With a zero point of 1,
                                               {4.46875F, 3.484375F, 3U},  // and without.
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
                                               {16320.0F, 0.0F, kMostWidth}}) {
    expect(false, larger, smaller, width);
  }
  for (const auto& [larger, smaller, width] : {std::tuple{1.9921875F, 0.9921875F, 2U},
                                               {2.0F, 0.0F, 3U},
                                               {1.0F, 1.0F, 3U},
                                               {4.96875F, 1.9921875F, 3U},
                                               {3.984375F, 2.984375F, 3U},
                                               {5.0F, 0.0F, 4U},
                                               {4.0F, 2.0F, 4U},
                                               {127.5F, 126.5F, 8U},
                                               {128.0F, 0.0F, 9U},
                                               {254.0F, 254.0F, 9U},
                                               {255.0F, 0.0F, 10U}}) {
    expect(true, larger, smaller, width);
  }
  EXPECT_TRUE(codes_of(bfloat16_bits(1), false).has_code(16383.49F));
  EXPECT_FALSE(codes_of(bfloat16_bits(1), false).has_code(16383.5F));
  EXPECT_TRUE(codes_of(bfloat16_bits(1), true).has_code(16382.99F));
  EXPECT_FALSE(codes_of(bfloat16_bits(1), true).has_code(16383));
  EXPECT_FALSE(codes_of(bfloat16_bits(1), false).has_code(kInf));
  EXPECT_FALSE(codes_of(bfloat16_bits(1), true).has_code(kInf));
}

// Of larger and smaller numbers of a block, over its step, without the zero point and with one.
TEST(StepCodes, HaveTheHeadersOfTheLeastSteps) {
  for (const auto& [larger, smaller, header] : {std::tuple{2.484375F, 1.4921875F, 0x08U},
                                                {1.5F, 1.0F, 0x0CU},
                                                {0.5F, 0.0F, 0x1AU},
                                                {0.03125F, 0.03125F, 0x34U},
                                                {0.01171875F, 0.0F, 0x3EU},
                                                {4.46875F, 3.484375F, 0x40U},
                                                {5.46875F, 2.484375F, 0x42U},
                                                {5.46875F, 0.0F, 0x42U},
                                                {2.5F, 2.5F, 0x50U},
                                                {2.5F, 0.0F, 0x5EU},
                                                {15.0F, 15.0F, 0x80U},
                                                {12.0F, 9.0F, 0x90U},
                                                {12.0F, 6.0F, 0x9AU},
                                                {128.0F, 127.0F, 0xE0U},
                                                {81.0F, 0.0F, 0xF4U},
                                                {129.0F, 0.0F, 0x01U},
                                                {16320.0F, 16320.0F, 0x07U}}) {
    const StepCodes codes = codes_of(bfloat16_bits(1), false);
    EXPECT_EQ(codes.header(sides_of(larger, smaller)), header) << larger << " " << smaller;
    const uint32_t sign = header >= 8 && larger > smaller ? 1 : 0;
    EXPECT_EQ(codes.header(sides_of(smaller, larger)), header + sign) << larger << " " << smaller;
  }
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

// The greatest bfloat16 that both sides may be over such a step, on the side of the larger numbers alone, or on both,
// has it, and the next a step of a quarter more.
TEST(StepCodes, SayHowFarTheStepsOfFaintBlocksAreBelowThem) {
  for (const bool stochastic : {false, true}) {
    for (const uint32_t bits :
         {uint32_t{kLeastStep}, kLeastStep + 1U, kLeastStep + 0x55U, kLeastStep + 0x1A0U, kLeastStep + 0x2FFU,
          kLeastStep + 0x300U, kLeastStep + 0x301U, bfloat16_bits(1), bfloat16_bits(1.25F), bfloat16_bits(1.3F),
          bfloat16_bits(1.75F), bfloat16_bits(0x1.FEp0F), bfloat16_bits(0x1p126F), uint32_t{kGreatestStep}}) {
      const StepCodes codes = codes_of(bits, stochastic);
      const ModelStep model = model_of(codes);
      const double step = test::octaves(model.step);
      const int farthest = static_cast<int>(std::min(27.0, std::floor(4 * (step + 101))));
      const double least = stochastic ? -101 : std::max(-101.0, step - 27.0 / 4);
      const auto expect = [&](float larger, float smaller, int quarters) {
        if (!(larger <= kGreatestMagnitude)) return;
        SCOPED_TRACE(::testing::Message() << stochastic << " " << bits << " " << larger << " " << smaller);
        const bool is_zero = test::octaves(larger) < least;
        const int header = is_zero ? 0 : 8 + 2 * std::min(quarters, farthest);
        ASSERT_EQ(codes.width(sides_of(larger, smaller)), is_zero ? 0 : kFaintWidth);
        ASSERT_EQ(codes.header(sides_of(larger, smaller)), header);
        ASSERT_EQ(codes.header(sides_of(smaller, larger)), header + (is_zero || larger == smaller ? 0 : 1));
      };
      for (int quarters = 1; quarters <= 28; ++quarters) {
        const double own = test::at_octaves(step - quarters / 4.0);
        const float one_side = bfloat16_down(own * (2 + model.reach()));
        const float both_sides = bfloat16_down(own * (1 + model.reach()));
        expect(one_side, 0, quarters);
        expect(one_side, both_sides, quarters);
        expect(both_sides, both_sides, quarters);
        expect(next_bfloat16(one_side), 0, quarters - 1);
        expect(next_bfloat16(both_sides), next_bfloat16(both_sides), quarters - 1);
      }
    }
    EXPECT_EQ(codes_of(kLeastStep, stochastic).header(BlockExtent{}), 0);
    EXPECT_EQ(codes_of(kGreatestStep, stochastic).header(BlockExtent{}), 0);
  }
}

// To nearest of those 6.75 octaves below the step.
TEST(StepCodes, MakeZerosOfBlocksFarBelow) {
  const auto width = [](bool stochastic, float largest) {
    return codes_of(bfloat16_bits(1.25F), stochastic).width(sides_of(largest, 0));
  };
  EXPECT_EQ(width(false, 0x1.8p-7F), kFaintWidth);
  EXPECT_EQ(width(false, 0x1.7E0002p-7F), kFaintWidth);  // It is rounded up.
  EXPECT_EQ(width(false, 0x1.7Ep-7F), 0U);
  EXPECT_EQ(width(true, 0x1p-101F), kFaintWidth);
  EXPECT_EQ(width(true, 0x1.FE0002p-102F), kFaintWidth);
  EXPECT_EQ(width(true, 0x1.FEp-102F), 0U);
}

// Blocks at random: sides anywhere, or at the limits of a width over a step that a header can say, or a bfloat16
// beside.
class RandomBlocks {
 public:
  // Calls body(codes, extent, the same for the model).
  template <class Body>
  void for_each(int blocks, const Body& body) {
    for (int i = 0; i < blocks; ++i) {
      const StepCodes codes = codes_of(uniform(kLeastStep, kGreatestStep), i % 2 == 0);
      const ModelStep model = model_of(codes);
      const float larger = side(model, +1);
      const float smaller = i % 7 == 0    ? 0
                            : i % 11 == 0 ? larger
                            : i % 3 == 0  ? bfloat16_down(larger * part())
                                          : side(model, -1);
      const auto [positive, negative] = uniform(0, 1) == 0 ? std::pair{larger, smaller} : std::pair{smaller, larger};
      const BlockExtent extent = sides_of(negative, positive);
      if (extent.larger() > kGreatestMagnitudeBits || !has_code(codes, extent)) continue;
      body(codes, extent, model, ModelSides::of(positive, negative));
      if (::testing::Test::HasFatalFailure()) {
        FAIL() << "step " << model.step << (codes.stochastic ? " at random" : "") << ", numbers from " << -negative
               << " to " << positive;
      }
    }
  }

 private:
  uint32_t uniform(uint32_t least, uint32_t greatest) {
    return std::uniform_int_distribution<uint32_t>(least, greatest)(engine_);
  }
  double part() { return uniform(0, 1 << 16) * 0x1p-16; }

  float side(const ModelStep& step, int sign) {
    const double octaves = test::octaves(step.step);
    if (uniform(0, 2) == 0) return finite(test::at_octaves(octaves - 8 + 22 * part()), 0);
    const ModelHeader header = ModelHeader::of(static_cast<int>(uniform(1, 255)));
    const int code = uniform(0, 3) == 0 ? static_cast<int>(1U << (header.width - 2)) - 1
                     : sign > 0         ? -header.least_code()
                                        : header.greatest_code();
    const double own = test::at_octaves(octaves - header.octaves_below);
    return finite(own * (code + step.reach()), static_cast<int>(uniform(0, 2)) - 1);
  }

  static float finite(double magnitude, int beside) {
    const float below = bfloat16_down(std::min(magnitude, double{std::numeric_limits<float>::max()}));
    return below == 0 ? 0 : float_of_bits(float_bits(below) + (static_cast<uint32_t>(beside) << 16));
  }

  std::mt19937 engine_{7};
};

constexpr int kRandomBlocks = test::kSanitized ? 20000 : 2000000;

TEST(StepCodes, HaveTheHeadersOfTheModel) {
  std::vector<int64_t> seen(256);
  RandomBlocks().for_each(
      kRandomBlocks, [&](const StepCodes& codes, BlockExtent extent, const ModelStep& step, const ModelSides& sides) {
        const ModelBlock block(sides, step);
        ASSERT_EQ(codes.width(extent), block.width);
        const uint32_t header = codes.header(extent);
        ASSERT_EQ(header, block.byte());
        ASSERT_EQ(width_of_header(header), block.width);
        ASSERT_EQ(zero_point_of_header(header), block.zero_point);
        ASSERT_EQ(step_of_block(codes.step, header), block.own_step);
        ++seen[header];
      });
  for (size_t header = 0; header < 256; ++header) {
    if (!test::kSanitized) {
      EXPECT_EQ(seen[header] > 0, header < 224 || header / 2 % 2 == 0) << header;
    }
  }
}

// Whatever random word it is rounded with. To nearest the largest number is not lost. Numbers that a 256th of a step
// more are over it would still have a code: no rounding of products and quotients gets that far.
TEST(StepCodes, GiveNoBlockACodeThatItsWidthDoesNotHold) {
  RandomBlocks().for_each(
      kRandomBlocks, [&](const StepCodes& codes, BlockExtent extent, const ModelStep& step, const ModelSides& sides) {
        const uint32_t header = codes.header(extent);
        if (header == 0) return;
        const ModelHeader says = ModelHeader::of(static_cast<int>(header));
        const float own = step_of_block(codes.step, header);
        ASSERT_LE(std::abs(own), step.step);
        ASSERT_GE(std::abs(own), 0x1p-101F);
        const float inverse = 1 / own;
        ASSERT_TRUE(std::isfinite(inverse) && inverse != 0);
        const float larger = float_of_bits(extent.larger()) * (extent.is_positive() ? 1.0F : -1.0F);
        const float smaller = float_of_bits(extent.smaller()) * (extent.is_positive() ? -1.0F : 1.0F);
        for (const float y : {larger * inverse, smaller * inverse}) {
          for (const uint32_t random : {0U, ~0U}) {
            const int32_t code = codes.stochastic ? variable_code(y, random) : variable_code(y);
            ASSERT_GE(code, says.least_code());
            ASSERT_LE(code, says.greatest_code());
          }
        }
        if (!codes.stochastic) {
          ASSERT_NE(variable_code(larger * inverse), 0);
        }
        const double beyond = step.reach() + 1.0 / 256;
        if (says.has_own_step()) {
          ASSERT_LE(sides.larger / std::abs(own), -says.least_code() + beyond);
          ASSERT_LE(sides.smaller / std::abs(own), says.greatest_code() + beyond);
        } else {
          ASSERT_LE(sides.larger / own, says.greatest_code() + beyond);
        }
      });
}

// With one a quarter or an eighth of an octave less, a number would be less than a 128th below what the codes hold, or
// beyond, both without a zero point and with one. float64 holds these products.
TEST(StepCodes, GiveABlockTheLeastStepWithWhichItsNumbersHaveCodesOfItsWidth) {
  RandomBlocks().for_each(
      kRandomBlocks, [&](const StepCodes& codes, BlockExtent extent, const ModelStep& step, const ModelSides& sides) {
        const ModelHeader header = ModelHeader::of(static_cast<int>(codes.header(extent)));
        if (!header.has_own_step()) return;
        const double half = std::ldexp(1, header.width - 1);
        const auto holds = [&](double octaves_below, double zero_point) {
          const double own = test::at_octaves(test::octaves(step.step) - octaves_below);
          return own >= 0x1p-101 && sides.larger <= own * (half + zero_point + step.reach()) &&
                 sides.smaller <= own * (half - 1 - zero_point + step.reach());
        };
        if (header.octaves_below > 0) {
          ASSERT_TRUE(holds(header.octaves_below, header.zero_point));
        }
        const double less = header.octaves_below + (header.width == 2 ? 0.25 : 0.125);
        if (less > (header.width == 2 ? 6.75 : 0.875)) return;
        ASSERT_FALSE(holds(less, 0));
        if (header.width > 2 && header.width < 8) {
          ASSERT_FALSE(holds(less, half / 4));
        }
      });
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

// One side grows by one bfloat16 after the other, while the other stays; which of them is the larger may change.
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
