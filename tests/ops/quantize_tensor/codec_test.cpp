// The codec of FP16 and BFP16 on one element, compared with its documented values and with PyTorch's conversions of
// every pattern.
#include "ops/codec/quantize_tensor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/ops/quantize_tensor/reference.h"

namespace narrowcast::codec {
namespace {

struct Bfp16Row {
  uint32_t bits;
  uint16_t code;
};

class Bfp16Codec : public ::testing::TestWithParam<Bfp16Row> {};

TEST_P(Bfp16Codec, EncodesTheTable) {
  EXPECT_EQ(encode_bfp16(float_of_bits(GetParam().bits)), GetParam().code);
  EXPECT_EQ(float_bits(decode_bfp16(GetParam().code)), uint32_t{GetParam().code} << 16);
}

// The last four are NaNs, which upstream encodes as 7f80, 8000, 0000 and ff80.
INSTANTIATE_TEST_SUITE_P(Table, Bfp16Codec,
                         ::testing::Values(Bfp16Row{0x3f808000, 0x3f81}, Bfp16Row{0xbf808000, 0xbf81},
                                           Bfp16Row{0x00008000, 0x0001}, Bfp16Row{0x7f7fffff, 0x7f80},
                                           Bfp16Row{0x00007fff, 0x0000}, Bfp16Row{0x80000000, 0x8000},
                                           Bfp16Row{0x7f800000, 0x7f80}, Bfp16Row{0xff800000, 0xff80},
                                           Bfp16Row{0x7f800001, 0x7fc0}, Bfp16Row{0x7fffffff, 0x7fff},
                                           Bfp16Row{0xffffffff, 0xffff}, Bfp16Row{0xff800001, 0xffc0}));

TEST(Fp16Codec, ClampsToTheGreatestFiniteValue) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float x : {65504.0F, 65519.0F, 65520.0F, 1e9F, kInf}) {
    EXPECT_EQ(encode_fp16(x), 0x7BFF);
    EXPECT_EQ(encode_fp16(-x), 0xFBFF);
  }
  EXPECT_EQ(encode_fp16(65519.0F, 65536.0F), 0x7BFF);
  EXPECT_EQ(encode_fp16(65520.0F, 65536.0F), 0x7C00);
  EXPECT_EQ(encode_fp16(-kInf, 65536.0F), 0xFC00);
}

TEST(Fp16Codec, KeepsNanAndItsSign) {
  EXPECT_EQ(encode_fp16(float_of_bits(0x7F800001U)), 0x7E00);
  EXPECT_EQ(encode_fp16(float_of_bits(0xFFFFFFFFU)), 0xFE00);
}

// For every two neighbours of binary16: the tie, and the float32 values next to it.
TEST(Fp16Codec, RoundsEveryTieToEven) {
  for (uint32_t code = 0; code < 0x7BFF; ++code) {
    const float tie = (decode_fp16(static_cast<uint16_t>(code)) + decode_fp16(static_cast<uint16_t>(code + 1))) / 2;
    const uint32_t bits = float_bits(tie);
    ASSERT_EQ(encode_fp16(float_of_bits(bits - 1)), code);
    ASSERT_EQ(encode_fp16(tie), code + (code & 1U));
    ASSERT_EQ(encode_fp16(float_of_bits(bits + 1)), code + 1);
    ASSERT_EQ(encode_fp16(-tie), 0x8000U | (code + (code & 1U)));
  }
}

TEST(Fp16Codec, DecodesEveryPatternAsPyTorch) {
  const at::Tensor patterns = test::every_pattern(at::kHalf);
  const at::Tensor expected = patterns.to(at::kFloat);
  const auto* codes = static_cast<const uint16_t*>(patterns.const_data_ptr());
  for (int64_t i = 0; i < patterns.numel(); ++i) {
    const float value = decode_fp16(codes[i]);
    const float wanted = expected.const_data_ptr<float>()[i];
    ASSERT_TRUE(float_bits(value) == float_bits(wanted) || (value != value && wanted != wanted)) << codes[i];
    if (value == value && (codes[i] & 0x7FFF) != 0x7C00) {  // Not Inf, which is clamped.
      ASSERT_EQ(encode_fp16(value), codes[i]);
    }
  }
}

TEST(Bfp16CodecOnEveryPattern, EncodesWhatItDecodes) {
  for (uint32_t code = 0; code <= 0xFFFF; ++code) {
    const float value = decode_bfp16(static_cast<uint16_t>(code));
    ASSERT_EQ(encode_bfp16(value), value == value ? code : code | 0x0040U);
  }
}

}  // namespace
}  // namespace narrowcast::codec
