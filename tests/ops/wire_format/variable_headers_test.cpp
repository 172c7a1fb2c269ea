// The headers of blocks for a step, and their codes (ops/codec/variable_headers.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "ops/codec/variable_headers.h"
#include "ops/codec/variable_width.h"
#include "tests/ops/wire_format/step_codes.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/ops/wire_format/variable_model.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::bfloat16_bits;
using test::bfloat16_down;
using test::codes_of;
using test::codes_of_one;
using test::has_code;
using test::kGreatestMagnitude;
using test::model_of;
using test::ModelBlock;
using test::ModelHeader;
using test::ModelSides;
using test::ModelStep;
using test::sides_of;
using test::SidesCase;

float next_bfloat16(float number) { return float_of_bits(float_bits(number) + 0x10000U); }

// For a step of 1, and blocks whose positive numbers do not reach farther than the others.
TEST(StepCodes, HaveTheHeadersOfTheLeastSteps) {
  constexpr SidesCase kCases[] = {
      {2.484375F, 1.4921875F, 0x08U},
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
      {16320.0F, 16320.0F, 0x07U},
  };
  const StepCodes codes = codes_of_one(false);
  for (const auto& [larger, smaller, header] : kCases) {
    EXPECT_EQ(codes.header(sides_of(larger, smaller)), header) << larger << " " << smaller;
    const uint32_t sign = header >= 8 && larger > smaller ? 1 : 0;
    EXPECT_EQ(codes.header(sides_of(smaller, larger)), header + sign) << larger << " " << smaller;
  }
}

// A step holds blocks up to the greatest bfloat16 on the side of the larger numbers, or on both sides. The next
// bfloat16 needs a step that is a quarter of an octave larger.
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

// A step and the extent of a block, and the same for the model.
struct RandomBlock {
  StepCodes codes;
  BlockExtent extent;
  ModelStep step;
  ModelSides sides;
};

// Random blocks. Sides lie anywhere, or at the limit of a width for some header's step, or one bfloat16 below.
class RandomBlocks {
 public:
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
      body(RandomBlock{codes, extent, model, ModelSides::of(positive, negative)});
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
  RandomBlocks().for_each(kRandomBlocks, [&](const RandomBlock& block) {
    const auto& [codes, extent, step, sides] = block;
    const ModelBlock model(sides, step);
    ASSERT_EQ(codes.width(extent), model.width);
    const uint32_t header = codes.header(extent);
    ASSERT_EQ(header, model.byte());
    ASSERT_EQ(width_of_header(header), model.width);
    ASSERT_EQ(zero_point_of_header(header), model.zero_point);
    ASSERT_EQ(step_of_block(codes.step, header), model.own_step);
    ++seen[header];
  });
  for (size_t header = 0; header < 256; ++header) {
    if (!test::kSanitized) {
      EXPECT_EQ(seen[header] > 0, header < 224 || header / 2 % 2 == 0) << header;
    }
  }
}

// This holds for any random word. To nearest, the largest number does not become 0. Numbers that are a 256th of a step
// larger still have a code: the rounding error of products and quotients is smaller.
TEST(StepCodes, GiveNoBlockACodeThatItsWidthDoesNotHold) {
  RandomBlocks().for_each(kRandomBlocks, [&](const RandomBlock& block) {
    const auto& [codes, extent, step, sides] = block;
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

// With a step that is a quarter or an eighth of an octave smaller, a number would be beyond the codes or less than a
// 128th below their limit. This holds with and without a zero point. float64 holds these products.
TEST(StepCodes, GiveABlockTheLeastStepWithWhichItsNumbersHaveCodesOfItsWidth) {
  RandomBlocks().for_each(kRandomBlocks, [&](const RandomBlock& block) {
    const ModelStep& step = block.step;
    const ModelSides& sides = block.sides;
    const ModelHeader header = ModelHeader::of(static_cast<int>(block.codes.header(block.extent)));
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
