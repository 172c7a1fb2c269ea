// The arithmetic of one element, compared with the table of PyTorch's results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "ops/codec/affine_uint8.h"
#include "tests/ops/affine_uint8/table.h"

namespace narrowcast::codec {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

AffineRange range_of(const std::vector<float>& values) {
  AffineRange range;
  for (const float value : values) {
    range = merge(range, {value, value});
  }
  return range;
}

std::vector<int> codes_of(const std::vector<float>& values, AffineQparams qparams) {
  std::vector<int> codes;
  for (const float value : values) {
    codes.push_back(quantize(value, qparams));
  }
  return codes;
}

class AffineUint8Table : public ::testing::TestWithParam<test::AffineUint8Row> {};

TEST_P(AffineUint8Table, GivesPyTorchsQparamsAndCodes) {
  const test::AffineUint8Row& expected = GetParam();
  const AffineQparams qparams = choose_qparams(range_of(expected.values));
  EXPECT_EQ(qparams.scale, expected.scale);
  EXPECT_EQ(qparams.zero_point, expected.zero_point);
  EXPECT_EQ(codes_of(expected.values, qparams), expected.codes);
}

INSTANTIATE_TEST_SUITE_P(All, AffineUint8Table, ::testing::ValuesIn(test::affine_uint8_table()),
                         [](const auto& test) { return test.param.name; });

TEST(AffineUint8Codec, NanMakesTheScaleNanAndEveryCodeZero) {
  for (const std::vector<float>& values : {std::vector<float>{1, kNan, -2}, {kNan}, {kNan, 3}, {-3, kNan, kInf}}) {
    const AffineQparams qparams = choose_qparams(range_of(values));
    EXPECT_NE(qparams.scale, qparams.scale);
    EXPECT_EQ(qparams.zero_point, 0);
    EXPECT_THAT(codes_of(values, qparams), testing::Each(0));
    EXPECT_NE(dequantize(0, qparams), dequantize(0, qparams));
  }
}

TEST(AffineUint8Codec, InfiniteScaleDecodesToNan) {
  const float decoded = dequantize(0, choose_qparams(range_of({kInf})));
  EXPECT_NE(decoded, decoded);
}

TEST(AffineUint8Codec, QuantizeRoundsHalfToEven) {
  EXPECT_THAT(codes_of({.5F, 1.5F, 2.5F, -.5F, -1.5F}, {1, 100}), testing::ElementsAre(100, 102, 102, 100, 98));
}

TEST(AffineUint8Codec, QuantizeClampsWhatTheQparamsDoNotReach) {
  EXPECT_THAT(codes_of({kInf, -kInf, kMax, -kMax, kNan, 1e10F}, {.5F, 7}),
              testing::ElementsAre(255, 0, 255, 0, 0, 255));
}

TEST(AffineUint8Codec, QuantizeDividesDoublesInDouble) {
  // In float32 both quotients would be 0.5, which rounds to 0.
  EXPECT_EQ(quantize(0.5 + 1e-12, {1, 0}), 1);
  EXPECT_EQ(quantize(0.5 - 1e-12, {1, 0}), 0);
}

TEST(AffineUint8Codec, DequantizeIsExactForSmallScales) {
  EXPECT_EQ(dequantize(255, {0x1p-23F, 0}), 255 * 0x1p-23F);
  EXPECT_EQ(dequantize(0, {0x1p-23F, 255}), -255 * 0x1p-23F);
  EXPECT_EQ(dequantize(77, {3, 77}), 0);
}

TEST(AffineUint8Codec, MergeKeepsNanFromEitherSide) {
  for (const AffineRange merged : {merge({-1, 1}, {kNan, kNan}), merge({kNan, kNan}, {-1, 1})}) {
    EXPECT_NE(merged.min, merged.min);
    EXPECT_NE(merged.max, merged.max);
  }
}

}  // namespace
}  // namespace narrowcast::codec
