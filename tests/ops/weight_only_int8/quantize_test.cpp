// dynamically_quantize_per_channel: contract, errors, layouts, threads, devices and autograd.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include <narrowcast/weight_only_int8.h>
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/weight_only_int8/reference.h"
#include "tests/support/devices.h"
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using test::same_bits;
using testing::error_message;
using ::testing::HasSubstr;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

void expect_reference(const at::Tensor& x, int64_t quant_min, int64_t quant_max, at::ScalarType target) {
  const auto [codes, scales, zero_points] = dynamically_quantize_per_channel(x, quant_min, quant_max, target);
  const auto [expected, expected_scales, expected_zero_points] =
      test::reference_quantize(x, quant_min, quant_max, target);
  EXPECT_TRUE(same_bits(codes, expected.contiguous()));
  EXPECT_TRUE(same_bits(scales, expected_scales));
  EXPECT_TRUE(same_bits(zero_points, expected_zero_points));
  EXPECT_TRUE(codes.is_contiguous());
}

TEST(DynamicallyQuantizePerChannel, GivesTheKnownCodes) {
  const at::Tensor x = at::tensor({1.0F, -1.0F, 0.5F, 0.25F, 3.0F, -2.0F, 0.0F, 0.1F}).view({2, 4});
  const auto [codes, scales, zero_points] = dynamically_quantize_per_channel(x, -128, 127, at::kChar);
  EXPECT_TRUE(same_bits(codes, at::tensor({127, -127, 64, 32, 127, -85, 0, 4}).to(at::kChar).view({2, 4})));
  EXPECT_TRUE(same_bits(scales, at::tensor({1 / 127.5F, 3 / 127.5F})));
  EXPECT_TRUE(same_bits(zero_points, at::zeros({2}, at::kLong)));
}

// Properties on every device; the reference is PyTorch's result on the same device.
class DynamicallyQuantizePerChannelOnDevice : public test::DeviceTest {};

INSTANTIATE_TEST_SUITE_P(Devices, DynamicallyQuantizePerChannelOnDevice, test::kDevices, test::name_of_case);

TEST_P(DynamicallyQuantizePerChannelOnDevice, EqualsPyTorch) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [name, of_cpu] : test::inputs(dtype, 37 * 129)) {
      const at::Tensor flat = of_cpu.to(device());
      for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{37, 129}, {1, 4773}, {4773, 1}}) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << name << " " << shape);
        expect_reference(flat.view(shape), -128, 127, at::kChar);
        expect_reference(flat.view(shape), 0, 255, at::kByte);
        if (dtype == at::kFloat || dtype == at::kDouble) expect_reference(flat.view(shape), -32768, 32767, at::kShort);
      }
    }
  }
}

TEST_P(DynamicallyQuantizePerChannelOnDevice, KeepsZeroAndHostileRowsApart) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x =
        at::tensor({0.0, -0.0, 0.0, 1.0, nan, -inf, inf, -3.0, 2.0, 1e-7, -2e-7, 1e-8, 1.0, 2.0, -4.0}, at::kDouble)
            .view({5, 3})
            .to(dtype)
            .to(device());
    expect_reference(x, -128, 127, at::kChar);
    expect_reference(x, 5, 200, at::kByte);
    const auto [codes, scales, unused] = dynamically_quantize_per_channel(x, -128, 127, at::kChar);
    EXPECT_EQ(scales[0].item<float>(), 0x1p-23F);
    EXPECT_TRUE(scales[1].isnan().item<bool>());
    EXPECT_EQ(scales[2].item<double>(), inf);
    EXPECT_TRUE(codes.slice(0, 0, 3).eq(0).all().item<bool>());
  }
}

TEST_P(DynamicallyQuantizePerChannelOnDevice, ReadsAnyLayout) {
  const at::Tensor base = at::randn({30, 40}).to(device());
  for (const at::Tensor& x : {base.t(), base.slice(0, 1, 30, 3), base.slice(1, 5, 33), base.slice(1, 0, 40, 2),
                              base.flip(1), base[3].expand({6, 40}), base.select(1, 3).unsqueeze(1)}) {
    SCOPED_TRACE(::testing::Message() << x.sizes() << x.strides());
    expect_reference(x, -128, 127, at::kChar);
    expect_reference(x.to(at::kBFloat16), -128, 127, at::kChar);
    expect_reference(x.to(at::kDouble), -128, 127, at::kChar);
  }
}

TEST(DynamicallyQuantizePerChannel, GivesEqualBitsOnAnyNumberOfThreads) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1, 300007}, {3, 70001}, {5003, 61}}) {
    at::Tensor x = at::randn(shape);
    x[0][shape[1] - 1] = std::numeric_limits<float>::quiet_NaN();
    for (const int threads : {1, 2, 4}) {
      const test::UseThreads use(threads);
      expect_reference(x, -128, 127, at::kChar);
    }
  }
}

// Rows long enough to be split.
TEST_P(DynamicallyQuantizePerChannelOnDevice, EqualsPyTorchForLongRows) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = at::randn({2, 70001}).to(dtype).to(device());
    expect_reference(x, -128, 127, at::kChar);
    expect_reference(x.slice(1, 1), 0, 255, at::kByte);
  }
}

TEST_P(DynamicallyQuantizePerChannelOnDevice, HasNoRowsWhereThereAreNone) {
  const at::Tensor x = at::empty({0, 3}).to(device());
  const auto [codes, scales, zero_points] = dynamically_quantize_per_channel(x, -128, 127, at::kChar);
  EXPECT_EQ(codes.sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(scales.sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(zero_points.sizes(), at::IntArrayRef({0}));
}

TEST(DynamicallyQuantizePerChannel, KnowsItsOutputsOnTheMetaDevice) {
  const at::Tensor x = at::empty({4, 6}, at::device(at::kMeta).dtype(at::kBFloat16)).t();
  const auto [codes, scales, zero_points] = dynamically_quantize_per_channel(x, 0, 255, at::kByte);
  EXPECT_TRUE(codes.is_meta());
  EXPECT_EQ(codes.sizes(), at::IntArrayRef({6, 4}));
  EXPECT_EQ(codes.scalar_type(), at::kByte);
  EXPECT_TRUE(codes.is_contiguous());
  EXPECT_EQ(scales.sizes(), at::IntArrayRef({6}));
  EXPECT_EQ(scales.scalar_type(), at::kBFloat16);
  EXPECT_EQ(zero_points.sizes(), at::IntArrayRef({6}));
  EXPECT_EQ(zero_points.scalar_type(), at::kLong);
  EXPECT_THROW(dynamically_quantize_per_channel(x, 0, 256, at::kByte), c10::ValueError);
}

TEST(DynamicallyQuantizePerChannel, BackwardThroughTheScalesThrows) {
  const at::Tensor x = at::randn({3, 5}).requires_grad_();
  const auto [codes, scales, zero_points] = dynamically_quantize_per_channel(x, -128, 127, at::kChar);
  EXPECT_FALSE(codes.requires_grad());
  ASSERT_TRUE(scales.requires_grad());
  try {
    scales.sum().backward();
    FAIL() << "backward did not throw";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("narrowcast::dynamically_quantize_per_channel is not implemented"));
  }
}

template <class Error>
std::string refusal(const at::Tensor& x, int64_t quant_min, int64_t quant_max, at::ScalarType target) {
  return error_message<Error>([&] { dynamically_quantize_per_channel(x, quant_min, quant_max, target); });
}

TEST(DynamicallyQuantizePerChannelErrors, NameTheTypeThatIsWrong) {
  const at::Tensor x = at::ones({2, 3});
  EXPECT_EQ(refusal<c10::TypeError>(x.to(at::kInt), -128, 127, at::kChar),
            "x must be float32, float64, bfloat16 or float16, not Int");
  EXPECT_EQ(refusal<c10::TypeError>(x, -128, 127, at::kInt),
            "target_dtype must be int8 or uint8, or int16 for float32 and float64 x, not Int for Float x");
  EXPECT_EQ(refusal<c10::TypeError>(x.to(at::kBFloat16), -128, 127, at::kShort),
            "target_dtype must be int8 or uint8, or int16 for float32 and float64 x, not Short for BFloat16 x");
}

TEST(DynamicallyQuantizePerChannelErrors, NameTheShapeThatIsWrong) {
  EXPECT_EQ(refusal<c10::ValueError>(at::ones({3}), -128, 127, at::kChar),
            "x must have 2 dimensions, but has shape [3]");
  EXPECT_EQ(refusal<c10::ValueError>(at::ones({1, 2, 3}), -128, 127, at::kChar),
            "x must have 2 dimensions, but has shape [1, 2, 3]");
  EXPECT_EQ(refusal<c10::ValueError>(at::ones({3, 0}), -128, 127, at::kChar),
            "x has channels without elements: its shape is [3, 0]");
  EXPECT_EQ(refusal<c10::ValueError>({}, -128, 127, at::kChar), "x is an undefined tensor");
}

TEST(DynamicallyQuantizePerChannelErrors, NameTheRangeThatIsWrong) {
  const at::Tensor x = at::ones({2, 3});
  EXPECT_EQ(refusal<c10::ValueError>(x, -129, 127, at::kChar),
            "quant_min must be at least -128 for target_dtype Char, but is -129");
  EXPECT_EQ(refusal<c10::ValueError>(x, -128, 128, at::kChar),
            "quant_max must be at most 127 for target_dtype Char, but is 128");
  EXPECT_EQ(refusal<c10::ValueError>(x, -1, 255, at::kByte),
            "quant_min must be at least 0 for target_dtype Byte, but is -1");
  EXPECT_EQ(refusal<c10::ValueError>(x, 0, 40000, at::kShort),
            "quant_max must be at most 32767 for target_dtype Short, but is 40000");
  EXPECT_EQ(refusal<c10::ValueError>(x, 7, 7, at::kChar),
            "quant_min must be less than quant_max, but they are 7 and 7");
}

}  // namespace
}  // namespace narrowcast
