// Every code, every number on the border between two codes, and their neighbours.
#include <ATen/ATen.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/cuda/launch/vectors.h"
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/devices.h"

namespace narrowcast::cuda {
namespace {

template <class T>
constexpr int kCodes = 1 << (8 * sizeof(T));

template <class T>
float number_of(int code) {
  return static_cast<float>(T(static_cast<decltype(T::x)>(code), T::from_bits()));
}

// Includes float32's subnormals and numbers beyond the range of T; every number with its neighbours.
template <class T>
std::vector<float> borders() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> numbers{0x1p-149F, -0x1p-127F, 65520.0F, -65520.0F, 0x1p127F, std::numeric_limits<float>::max()};
  for (int code = 0; code + 1 < kCodes<T>; ++code) {
    const float low = number_of<T>(code);
    const float high = number_of<T>(code + 1);
    numbers.push_back(low);
    if (std::isfinite(low) && std::isfinite(high)) {
      numbers.push_back(static_cast<float>((static_cast<double>(low) + high) / 2));
    }
  }
  const size_t count = numbers.size();
  for (size_t i = 0; i < count; ++i) {
    numbers.push_back(std::nextafter(numbers[i], kInf));
    numbers.push_back(std::nextafter(numbers[i], -kInf));
  }
  return numbers;
}

// Any NaN equals any other NaN.
template <class T, class Convert>
void expect_rounds_as(const Convert& bits_of) {
  for (const float x : borders<T>()) {
    const T expected(x);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(number_of<T>(bits_of(x))));
    } else {
      ASSERT_EQ(bits_of(x), expected.x) << x;
    }
  }
}

TEST(Conversions, RoundFloat16AsPyTorch) { expect_rounds_as<c10::Half>(binary16_bits); }
TEST(Conversions, RoundBfloat16AsPyTorch) { expect_rounds_as<c10::BFloat16>(bfloat16_bits); }

TEST(Conversions, GiveTheNumberOfEveryFloat16) {
  for (int code = 0; code < kCodes<c10::Half>; ++code) {
    const float expected = number_of<c10::Half>(code);
    const float actual = binary16_value(static_cast<uint16_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << code;
    } else {
      ASSERT_EQ(codec::float_bits(actual), codec::float_bits(expected)) << code;
    }
  }
}

TEST(Conversions, RoundFp8AsPyTorchWithinItsRange) {
  for (const float x : borders<c10::Float8_e4m3fn>()) {
    if (std::isnan(x) || std::fabs(x) > 448) continue;
    const uint32_t pair = e4m3_pair(x, -x);
    ASSERT_EQ(pair & 0xFFU, c10::Float8_e4m3fn(x).x) << x;
    ASSERT_EQ(pair >> 8, c10::Float8_e4m3fn(-x).x) << x;
  }
}

// The same on a GPU, where the kernels use its instructions. Bytes and numbers, except NaN, must equal the CPU's.
class CudaConversions : public ::testing::TestWithParam<WireFormat> {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(c10::DeviceType::CUDA); }
};

TEST_P(CudaConversions, EncodeEveryBorderAsTheCpu) {
  for (const auto& numbers : {borders<c10::Half>(), borders<c10::BFloat16>(), borders<c10::Float8_e4m3fn>()}) {
    const at::Tensor x = at::tensor(numbers);
    // In blocks of 32 that begin with the greatest code of fp8, so that their scale is 1.
    const at::Tensor in_range = x.index({x.abs() <= 448});
    const at::Tensor blocks = in_range.narrow(0, 0, in_range.numel() / 31 * 31).view({-1, 31});
    const at::Tensor with_greatest = at::cat({at::full({blocks.size(0), 1}, 448.0F), blocks}, 1).view({-1});
    for (const at::Tensor& input : {x, with_greatest}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
        const at::Tensor array = input.to(dtype);
        EXPECT_TRUE(at::equal(encode(array.cuda(), GetParam()).cpu(), encode(array, GetParam()))) << dtype;
      }
    }
  }
}

TEST_P(CudaConversions, DecodeEveryPairOfBytesAsTheCpu) {
  const at::Tensor codes = at::arange(1 << 16, at::kInt).to(at::kShort).view(at::kByte);
  const int64_t numel = codes.numel() / encoded_size(1024, GetParam()) * 1024;
  const at::Tensor message = codes.narrow(0, 0, encoded_size(numel, GetParam()));
  EXPECT_TRUE(test::same_bits(decode(message.cuda(), GetParam(), numel).cpu().nan_to_num(1, 2, 3),
                              decode(message, GetParam(), numel).nan_to_num(1, 2, 3)));
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaConversions,
                         ::testing::Values(WireFormat::kFp16, WireFormat::kBf16, WireFormat::kFp8E4M3B32),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace narrowcast::cuda
