// The parts of the wire codec: scales by their definition, E4M3 and the 16-bit floats compared with PyTorch's types on
// every pattern and tie, and Philox with its published answers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/codec/wire_message.h"

namespace narrowcast::codec::wire {
namespace {

// From the known-answer file of the Random123 distribution, philox4x32 with 10 rounds.
TEST(Philox, GivesItsPublishedAnswers) {
  const auto words = [](const PhiloxWords& w) { return std::vector<uint32_t>(w.word, w.word + 4); };
  EXPECT_EQ(words(philox({{0, 0, 0, 0}}, 0)), (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(philox({{~0U, ~0U, ~0U, ~0U}}, ~uint64_t{0})),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822)),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomWord, DependsOnSeedStepAndPosition) {
  const Rounding rounding{true, 0x0807060504030201, 0x1817161514131211, 0x28272625242322F8};
  const PhiloxWords words = philox({{0x4908C8BE, 0x0A09C989, 0x14131211, 0x18171615}}, 0x0807060504030201);
  EXPECT_EQ(rounding.position / 4, 0x0A09C9894908C8BE);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(random_word(rounding, i), words.word[i]);
  EXPECT_EQ(random_word(rounding.at(2), 1), words.word[3]);
}

void expect_least_scale(float magnitude, float greatest) {
  const uint16_t scale = block_scale(float_bits(magnitude), greatest);
  if (scale == 0) {
    EXPECT_LT(magnitude, double{greatest} * 0x1p-100) << magnitude;
    return;
  }
  EXPECT_GE(scale_value(scale), 0x1p-100F);
  EXPECT_GE(double{scale_value(scale)} * greatest, magnitude) << magnitude;
  const float below = scale_value(static_cast<uint16_t>(scale - 1));
  EXPECT_TRUE(double{below} * greatest < magnitude || below < 0x1p-100F) << magnitude;
}

TEST(BlockScale, IsTheLeastThatReachesTheLargestMagnitude) {
  at::manual_seed(1);
  const at::Tensor patterns = at::randint(0, 0x7F800000, {20000}, at::kInt);
  for (const float greatest : {127.0F, 31.0F, 7.0F, 448.0F}) {
    for (int64_t i = 0; i < patterns.numel(); ++i) {
      expect_least_scale(float_of_bits(static_cast<uint32_t>(patterns.const_data_ptr<int>()[i])), greatest);
    }
    for (uint32_t scale = 0x0D80; scale < 0x7B00; scale += 37) {  // Exact multiples and the floats next to them.
      const uint32_t exact = float_bits(scale_value(static_cast<uint16_t>(scale)) * greatest);
      EXPECT_EQ(block_scale(exact, greatest), scale);
      EXPECT_EQ(block_scale(exact + 1, greatest), scale + 1);
      EXPECT_EQ(block_scale(exact - 1, greatest), scale);
    }
  }
}

TEST(BlockScale, IsZeroBelowItsLeastAndNanBeyondNumbers) {
  EXPECT_EQ(block_scale(0, 127), 0);
  EXPECT_EQ(block_scale(1, 127), 0);
  EXPECT_EQ(block_scale(float_bits(0x1p-100F * 127), 127), 0x0D80);
  EXPECT_EQ(block_scale(float_bits(0x1p-101F * 127), 127), 0);
  EXPECT_EQ(inverse_scale(0), 0);
  for (const uint32_t bits : {kInfBits, kInfBits + 1, kQuietNanBits, 0x7FFFFFFFU}) {
    EXPECT_EQ(block_scale(bits, 127), kNanScale);
  }
}

TEST(SymmetricInt, SaysEveryCodeButTheLeast) {
  for (int32_t code = -31; code <= 31; ++code) {
    EXPECT_EQ(SymmetricInt<6>::decode(SymmetricInt<6>::encode(static_cast<float>(code))), code);
    EXPECT_EQ(SymmetricInt<6>::encode(static_cast<float>(code)), static_cast<uint32_t>(code) & 63U);
  }
  EXPECT_EQ(SymmetricInt<8>::decode(SymmetricInt<8>::encode(-126.5F)), -126);
  EXPECT_EQ(SymmetricInt<4>::decode(SymmetricInt<4>::encode(2.5F)), 2);
  EXPECT_EQ(SymmetricInt<4>::decode(8), -8);
}

at::Tensor every_byte() { return at::arange(256, at::kInt).to(at::kByte); }

TEST(Float8E4M3, DecodesEveryCodeAsPyTorch) {
  const at::Tensor expected = every_byte().view(at::kFloat8_e4m3fn).to(at::kFloat);
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = Float8E4M3::decode(code);
    const float wanted = expected.const_data_ptr<float>()[code];
    ASSERT_TRUE(float_bits(value) == float_bits(wanted) || (std::isnan(value) && std::isnan(wanted))) << code;
    if (!std::isnan(value)) {
      ASSERT_EQ(Float8E4M3::encode(value), code);
    }
  }
}

void expect_rounds_as_pytorch(const at::Tensor& x) {
  const at::Tensor codes = x.to(at::kFloat8_e4m3fn).view(at::kByte);
  for (int64_t i = 0; i < x.numel(); ++i) {
    ASSERT_EQ(Float8E4M3::encode(x.const_data_ptr<float>()[i]), codes.const_data_ptr<uint8_t>()[i]) << i;
  }
}

TEST(Float8E4M3, RoundsAsPyTorch) {
  at::manual_seed(2);
  expect_rounds_as_pytorch((at::rand({100000}) * 2 - 1) * 448);
  expect_rounds_as_pytorch(at::randn({100000}) * 0x1p-6);
  const at::Tensor numbers = at::arange(0x7F, at::kInt).to(at::kByte).view(at::kFloat8_e4m3fn).to(at::kFloat);
  const at::Tensor ties = (numbers.slice(0, 1) + numbers.slice(0, 0, -1)) / 2;
  for (const int64_t step : {-1, 0, 1}) {
    const at::Tensor beside = (ties.view(at::kInt) + step).view(at::kFloat);
    expect_rounds_as_pytorch(beside);
    expect_rounds_as_pytorch(-beside);
  }
}

// With the least and the greatest random word, numbers are rounded to their neighbours below and above.
template <class Element>
void expect_neighbours(float below, float x, float above) {
  EXPECT_EQ(Element::decode(static_cast<typename Element::Code>(Element::encode(x, 0))), below);
  EXPECT_EQ(Element::decode(static_cast<typename Element::Code>(Element::encode(x, ~0U))), above);
}

template <class Element>
struct AnyCode : Element {
  using Code = uint32_t;
};

TEST(RandomRoundingOfElements, StaysBetweenNeighbours) {
  expect_neighbours<AnyCode<SymmetricInt<8>>>(-4, -3.25F, -3);
  expect_neighbours<AnyCode<SymmetricInt<8>>>(0, 0x1p-20F, 1);
  expect_neighbours<AnyCode<SymmetricInt<8>>>(127, 127.00001F, 127);
  expect_neighbours<AnyCode<SymmetricInt<4>>>(-7, -7, -7);
  expect_neighbours<AnyCode<Float8E4M3>>(16, 17, 18);
  expect_neighbours<AnyCode<Float8E4M3>>(-448, -449, -448);
  expect_neighbours<AnyCode<Float8E4M3>>(0, 0x1p-10F, 0x1p-9F);
  expect_neighbours<Bfloat16>(1, 1.001F, 1.0078125F);
  expect_neighbours<Bfloat16>(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::infinity());
  expect_neighbours<Binary16>(-1, -1.0001F, -1.0009765625F);
  expect_neighbours<Binary16>(0, 0x1p-25F, 0x1p-24F);
  expect_neighbours<Binary16>(65504, 65505, std::numeric_limits<float>::infinity());
}

template <class Element>
void expect_converts_as_pytorch(at::ScalarType dtype) {
  at::manual_seed(3);
  const at::Tensor x = at::randint(0, 256, {400000}, at::kByte).view(at::kFloat);
  const at::Tensor expected = x.to(dtype).to(at::kFloat);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float value = Element::decode(Element::encode(x.const_data_ptr<float>()[i]));
    const float wanted = expected.const_data_ptr<float>()[i];
    ASSERT_TRUE(float_bits(value) == float_bits(wanted) || (std::isnan(value) && std::isnan(wanted)));
  }
}

TEST(FloatElements, ConvertAsPyTorch) {
  expect_converts_as_pytorch<Bfloat16>(at::kBFloat16);
  expect_converts_as_pytorch<Binary16>(at::kHalf);
}

TEST(FloatElements, MakeAllNansOne) {
  for (const uint32_t nan : {0x7F800001U, 0xFFFFFFFFU}) {
    EXPECT_EQ(Bfloat16::encode(float_of_bits(nan)), 0x7FC0);
    EXPECT_EQ(Binary16::encode(float_of_bits(nan), 5), 0x7E00);
    EXPECT_EQ(Binary32::encode(float_of_bits(nan)), 0x7FC00000U);
  }
}

// The largest errors of rounding to nearest, as a share of the error in the format's type: for numbers with a constant
// step, and for numbers whose step grows with them.
struct WorstShares {
  double of_half_step = 0;
  double of_relative = 0;
};

template <class Format>
void round_number(float x, WorstShares& worst) {
  using Element = typename Format::Element;
  const double relative = Format::kRelativeHalfStep * std::abs(double{x});
  double& share = relative > Format::kHalfStep ? worst.of_relative : worst.of_half_step;
  const double cost = std::abs(double{Element::decode(Element::encode(x))} - double{x});
  share = std::max(share, cost / std::max(Format::kHalfStep, relative));
}

// The numbers include ties: multiples of 2^-11 for block formats, 14 significant bits for others.
template <class Format>
WorstShares round_numbers() {
  WorstShares worst;
  if constexpr (Format::kHasBlocks) {
    for (double x = -Format::kGreatest; x <= Format::kGreatest; x += 0x1p-11) {
      round_number<Format>(static_cast<float>(x), worst);
    }
  } else {
    for (int exponent = -134; exponent < 15; ++exponent) {
      for (int digits = 1 << 13; digits < 1 << 14; ++digits) {
        round_number<Format>(std::ldexp(static_cast<float>(digits), exponent - 13), worst);
      }
    }
  }
  return worst;
}

TEST(HalfStep, IsTheMostThatRoundingToTheNearestCosts) {
  for (const WireFormat format : kWireFormats) {
    visit(format, [&](auto type) {
      using Format = decltype(type);
      if constexpr (Format::kIsVariable) {
        return;  // See variable_width_test.cpp: messages contain their step.
      } else if constexpr (Format::kIsSparse) {
        return;  // See sparse_test.cpp.
      } else if constexpr (Format::kHalfStep == 0) {
        EXPECT_EQ(Format::Element::decode(Format::Element::encode(0x1.234568p-120F)), 0x1.234568p-120F);
      } else {
        const WorstShares worst = round_numbers<Format>();
        EXPECT_EQ(worst.of_half_step, 1) << name_of(format);
        EXPECT_LE(worst.of_relative, 1) << name_of(format);
        EXPECT_GT(worst.of_relative, Format::kRelativeHalfStep > 0 ? 0.9 : -1) << name_of(format);
      }
    });
  }
}

}  // namespace
}  // namespace narrowcast::codec::wire
