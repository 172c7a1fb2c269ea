// The affine uint8 operators: contract, errors, layouts, threads and devices.
#include <narrowcast/affine_uint8.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/affine_uint8/table.h"
#include "tests/support/devices.h"
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using test::dequantize_backend;
using test::observe;
using test::quantize_backend;
using test::same_bits;
using testing::error_message;
using ::testing::HasSubstr;

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

class AffineUint8Operators : public ::testing::TestWithParam<test::AffineUint8Row> {};

TEST_P(AffineUint8Operators, GiveTheTablesValues) {
  const test::AffineUint8Row& row = GetParam();
  const at::Tensor x = at::tensor(row.values);
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  EXPECT_TRUE(same_bits(scale, at::tensor(std::vector<float>{row.scale})));
  EXPECT_TRUE(same_bits(zero_point, at::tensor(std::vector<int32_t>{row.zero_point}, at::kInt)));
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  EXPECT_TRUE(same_bits(codes, at::tensor(row.codes).to(at::kByte)));
  const auto [scales, zero_points] = choose_qparams_per_channel(x.unsqueeze(0));
  EXPECT_TRUE(same_bits(scales, scale));
  EXPECT_TRUE(same_bits(zero_points, zero_point));
}

INSTANTIATE_TEST_SUITE_P(Table, AffineUint8Operators, ::testing::ValuesIn(test::affine_uint8_table()),
                         [](const auto& test) { return test.param.name; });

// The gradients of PyTorch's hook test for two ranks; tests of DDP also use them.
TEST(AffineUint8Operator, GivesTheKnownQparamsOfTheReferenceTask) {
  at::manual_seed(2020);
  const at::Tensor x = at::randn({40, 20});
  const auto [scale0, zero_point0] = choose_qparams_per_tensor(x * 0.00125F);
  EXPECT_EQ(scale0.item<float>(), 0x1.103b08p-15F);
  EXPECT_EQ(zero_point0.item<int32_t>(), 129);
  const auto [scale1, zero_point1] = choose_qparams_per_tensor(x * x * 0.00125F);
  EXPECT_EQ(scale1.item<float>(), 0x1.cc103p-15F);
  EXPECT_EQ(zero_point1.item<int32_t>(), 0);
}

// Properties on every device; the reference is PyTorch's result on the same device.
class AffineUint8OnDevice : public test::DeviceTest {};

INSTANTIATE_TEST_SUITE_P(Devices, AffineUint8OnDevice, test::kDevices, test::name_of_case);

TEST_P(AffineUint8OnDevice, EqualsPyTorchPerTensor) {
  const test::UseThreads one(1);
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t size : test::kSizes) {
      for (const auto& [name, of_cpu] : test::inputs(dtype, size)) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << name << " of size " << size);
        const at::Tensor x = of_cpu.to(device());
        const auto [scale, zero_point] = choose_qparams_per_tensor(x);
        const auto [expected_scale, expected_zero_point] = observe(x);
        EXPECT_TRUE(same_bits(scale, expected_scale.view({1})));
        EXPECT_TRUE(same_bits(zero_point, expected_zero_point.view({1})));
        const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
        EXPECT_TRUE(same_bits(codes, quantize_backend(x, expected_scale, expected_zero_point)));
        EXPECT_TRUE(same_bits(dequantize_per_tensor(codes, scale, zero_point),
                              dequantize_backend(codes, expected_scale, expected_zero_point)));
      }
    }
  }
}

TEST_P(AffineUint8OnDevice, EqualsPyTorchPerChannel) {
  const test::UseThreads one(1);
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [name, flat] : test::inputs(dtype, 37 * 129)) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << name);
      const at::Tensor x = flat.view({37, 3, 43}).to(device());
      const auto [scales, zero_points] = choose_qparams_per_channel(x);
      const at::Tensor codes = quantize_per_channel(x, scales, zero_points);
      const at::Tensor decoded = dequantize_per_channel(codes, scales, zero_points);
      for (int64_t channel = 0; channel < x.size(0); ++channel) {
        const auto [scale, zero_point] = observe(x[channel]);
        EXPECT_TRUE(same_bits(scales[channel], scale));
        EXPECT_TRUE(same_bits(zero_points[channel], zero_point));
        EXPECT_TRUE(same_bits(codes[channel], quantize_backend(x[channel], scale, zero_point)));
        EXPECT_TRUE(same_bits(decoded[channel], dequantize_backend(codes[channel], scale, zero_point)));
      }
    }
  }
}

TEST_P(AffineUint8OnDevice, ReadsAnyLayout) {
  const at::Tensor base = at::randn({6, 8, 10}).to(device());
  const at::Tensor channels_last = at::randn({2, 3, 4, 5}).to(device()).contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& x :
       {base.transpose(0, 2), base.slice(0, 1, 6, 2), base.slice(2, 0, 10, 3), base.select(1, 3), base.flip(0),
        base.select(2, 0).unsqueeze(1).expand({6, 4, 8}), base.as_strided({5, 4}, {1, 1}), channels_last}) {
    SCOPED_TRACE(::testing::Message() << x.sizes() << x.strides());
    const at::Tensor plain = x.contiguous();
    const auto [scale, zero_point] = choose_qparams_per_tensor(x);
    EXPECT_TRUE(same_bits(scale, std::get<0>(choose_qparams_per_tensor(plain))));
    const auto [scales, zero_points] = choose_qparams_per_channel(x);
    EXPECT_TRUE(same_bits(scales, std::get<0>(choose_qparams_per_channel(plain))));
    const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
    EXPECT_TRUE(codes.is_contiguous());
    EXPECT_TRUE(same_bits(codes, quantize_per_tensor(plain, scale, zero_point)));
    EXPECT_TRUE(
        same_bits(quantize_per_channel(x, scales, zero_points), quantize_per_channel(plain, scales, zero_points)));
  }
}

TEST_P(AffineUint8OnDevice, DequantizesAnyLayout) {
  const at::Tensor q = at::randint(0, 256, {6, 8}, at::kByte).to(device()).t();
  const at::Tensor scales = at::rand({16}).to(device()).slice(0, 0, 16, 2);
  const at::Tensor zero_points = at::randint(0, 256, {16}, at::kInt).to(device()).slice(0, 0, 16, 2);
  const at::Tensor decoded = dequantize_per_channel(q, scales, zero_points);
  EXPECT_TRUE(decoded.is_contiguous());
  EXPECT_TRUE(same_bits(decoded, dequantize_backend(q, scales.unsqueeze(1), zero_points.unsqueeze(1)).contiguous()));
  EXPECT_TRUE(same_bits(dequantize_per_tensor(q, scales[0], zero_points[0]),
                        dequantize_backend(q, scales[0], zero_points[0]).contiguous()));
}

TEST_P(AffineUint8OnDevice, TakesFloatZeroPointsAndZeroDimensionalQparams) {
  const at::Tensor x = at::randn({9, 5}).to(device());
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  EXPECT_TRUE(same_bits(quantize_per_tensor(x, scale[0], zero_point[0].to(at::kFloat)), codes));
  EXPECT_TRUE(same_bits(dequantize_per_tensor(codes, scale[0], zero_point[0].to(at::kFloat)),
                        dequantize_per_tensor(codes, scale, zero_point)));
  const auto [scales, zero_points] = choose_qparams_per_channel(x);
  EXPECT_TRUE(same_bits(quantize_per_channel(x, scales, zero_points.to(at::kFloat)),
                        quantize_per_channel(x, scales, zero_points)));
}

TEST_P(AffineUint8OnDevice, HandlesTensorsWithoutElements) {
  const at::Tensor empty = at::empty({0, 3}).to(device());
  const auto [scale, zero_point] = choose_qparams_per_tensor(empty);
  EXPECT_EQ(scale.item<float>(), 1);
  EXPECT_EQ(zero_point.item<int32_t>(), 0);
  EXPECT_EQ(quantize_per_tensor(empty, scale, zero_point).sizes(), at::IntArrayRef({0, 3}));
  const auto [scales, zero_points] = choose_qparams_per_channel(empty);
  EXPECT_EQ(scales.sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(zero_points.scalar_type(), at::kInt);
  EXPECT_EQ(quantize_per_channel(empty, scales, zero_points).sizes(), at::IntArrayRef({0, 3}));
  const at::Tensor no_codes = at::empty({4, 0}, at::kByte).to(device());
  const at::Tensor ones = at::ones({4}).to(device());
  EXPECT_EQ(dequantize_per_channel(no_codes, ones, ones).sizes(), at::IntArrayRef({4, 0}));
  EXPECT_THAT(error_message<c10::ValueError>([this] {
                choose_qparams_per_channel(at::empty({3, 0}).to(device()));
              }),
              HasSubstr("x has channels without elements: its shape is [3, 0]"));
}

// Rows long enough to be split, and rows that begin at any alignment.
TEST_P(AffineUint8OnDevice, EqualsPyTorchForLongAndUnalignedRows) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{2, 70001}, {3, 8192}, {301, 1027}}) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << shape);
      const at::Tensor memory = at::randn({shape[0] * shape[1] + 3}).to(dtype).to(device());
      const at::Tensor x = memory.slice(0, 3).view(shape);
      const auto [scales, zero_points] = choose_qparams_per_channel(x);
      const at::Tensor codes = quantize_per_channel(x, scales, zero_points);
      const at::Tensor decoded = dequantize_per_channel(codes, scales, zero_points);
      for (int64_t channel = 0; channel < shape[0]; channel += 100) {
        const auto [scale, zero_point] = observe(x[channel]);
        EXPECT_TRUE(same_bits(scales[channel], scale));
        EXPECT_TRUE(same_bits(zero_points[channel], zero_point));
        EXPECT_TRUE(same_bits(codes[channel], quantize_backend(x[channel], scale, zero_point)));
        EXPECT_TRUE(same_bits(decoded[channel], dequantize_backend(codes[channel], scale, zero_point)));
      }
    }
  }
}

// More elements than one thread's share, in one row, in few rows and in many.
TEST(AffineUint8Operator, GivesEqualBitsOnAnyNumberOfThreads) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1, 300007}, {3, 70001}, {5003, 61}}) {
    const at::Tensor x = at::randn(shape);
    const test::UseThreads one(1);
    const auto [scales, zero_points] = choose_qparams_per_channel(x);
    const at::Tensor codes = quantize_per_channel(x, scales, zero_points);
    const at::Tensor decoded = dequantize_per_channel(codes, scales, zero_points);
    const at::Tensor scale = std::get<0>(choose_qparams_per_tensor(x));
    for (const int threads : {2, 4}) {
      const test::UseThreads several(threads);
      EXPECT_TRUE(same_bits(std::get<0>(choose_qparams_per_channel(x)), scales));
      EXPECT_TRUE(same_bits(std::get<1>(choose_qparams_per_channel(x)), zero_points));
      EXPECT_TRUE(same_bits(quantize_per_channel(x, scales, zero_points), codes));
      EXPECT_TRUE(same_bits(dequantize_per_channel(codes, scales, zero_points), decoded));
      EXPECT_TRUE(same_bits(std::get<0>(choose_qparams_per_tensor(x)), scale));
    }
  }
}

TEST(AffineUint8Operator, KnowsItsOutputsOnTheMetaDevice) {
  const at::Tensor x = at::empty({4, 6}, at::device(at::kMeta).dtype(at::kBFloat16));
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  EXPECT_EQ(scale.sizes(), at::IntArrayRef({1}));
  EXPECT_EQ(scale.scalar_type(), at::kFloat);
  EXPECT_EQ(zero_point.scalar_type(), at::kInt);
  EXPECT_TRUE(scale.is_meta());
  const auto [scales, zero_points] = choose_qparams_per_channel(x.t());
  EXPECT_EQ(scales.sizes(), at::IntArrayRef({6}));
  EXPECT_EQ(zero_points.sizes(), at::IntArrayRef({6}));
  const at::Tensor codes = quantize_per_channel(x.t(), scales, zero_points);
  EXPECT_EQ(codes.sizes(), at::IntArrayRef({6, 4}));
  EXPECT_EQ(codes.scalar_type(), at::kByte);
  EXPECT_TRUE(codes.is_contiguous());
  const at::Tensor decoded = dequantize_per_tensor(codes, scale, zero_point);
  EXPECT_EQ(decoded.sizes(), at::IntArrayRef({6, 4}));
  EXPECT_EQ(decoded.scalar_type(), at::kFloat);
  EXPECT_EQ(quantize_per_tensor(x, scale, zero_point).sizes(), x.sizes());
  EXPECT_EQ(dequantize_per_channel(codes, scales, zero_points).sizes(), codes.sizes());
  EXPECT_THROW(quantize_per_channel(x, scales, zero_points), c10::ValueError);
}

// Wrong calls and their error messages.
TEST(AffineUint8OperatorErrors, NameTheTypeThatIsWrong) {
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor q = x.to(at::kByte);
  const at::Tensor one = at::ones({1});
  EXPECT_EQ(error_message<c10::TypeError>([&] { choose_qparams_per_tensor(x.to(at::kLong)); }),
            "x must be float32, float64, bfloat16 or float16, not Long");
  EXPECT_EQ(error_message<c10::TypeError>([&] { choose_qparams_per_channel(q); }),
            "x must be float32, float64, bfloat16 or float16, not Byte");
  EXPECT_EQ(error_message<c10::TypeError>([&] { quantize_per_tensor(q, one, one); }),
            "x must be float32, float64, bfloat16 or float16, not Byte");
  EXPECT_EQ(error_message<c10::TypeError>([&] { dequantize_per_tensor(x, one, one); }), "q must be uint8, not Float");
  EXPECT_EQ(error_message<c10::TypeError>([&] { quantize_per_tensor(x, one.to(at::kDouble), one); }),
            "scale must be float32, not Double");
  EXPECT_EQ(error_message<c10::TypeError>([&] { dequantize_per_channel(q, x[0], x[0].to(at::kLong)); }),
            "zero_points must be int32 or float32, not Long");
}

TEST(AffineUint8OperatorErrors, NameTheShapeThatIsWrong) {
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor q = x.to(at::kByte);
  const at::Tensor one = at::ones({1});
  EXPECT_EQ(error_message<c10::ValueError>([&] { quantize_per_tensor(x, at::ones({2}), one); }),
            "scale must hold one value, but has shape [2]");
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              dequantize_per_tensor(q, one, at::ones({1, 1}));
            }),
            "zero_point must hold one value, but has shape [1, 1]");
  EXPECT_EQ(error_message<c10::ValueError>([&] { quantize_per_channel(x, at::ones({3}), at::ones({2})); }),
            "scales must have shape [2], one value per channel of x, but has shape [3]");
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              dequantize_per_channel(q, at::ones({2}), at::ones({2, 1}));
            }),
            "zero_points must have shape [2], one value per channel of q, but has shape [2, 1]");
  EXPECT_EQ(error_message<c10::ValueError>([&] { choose_qparams_per_channel(at::ones({})); }),
            "x must have a dimension 0, the channels, but is 0-dimensional");
}

TEST(AffineUint8OperatorErrors, NameTheZeroPointThatIsWrong) {
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor scales = at::ones({2});
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{
           {256, "256"}, {-1, "-1"}, {12.5, "12.5"}, {std::numeric_limits<double>::quiet_NaN(), "nan"}}) {
    const at::Tensor zero_points = at::tensor(std::vector<double>{0, value}).to(at::kFloat);
    EXPECT_EQ(error_message<c10::ValueError>([&] { quantize_per_channel(x, scales, zero_points); }),
              "zero_points must hold integers in [0, 255], but element 1 is " + text);
  }
  EXPECT_EQ(error_message<c10::ValueError>(
                [&] { dequantize_per_tensor(x.to(at::kByte), scales[0], at::full({1}, 300, at::kInt)); }),
            "zero_point must hold integers in [0, 255], but element 0 is 300");
}

TEST(AffineUint8OperatorErrors, NameTheTensorThatIsUndefinedOrElsewhere) {
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor one = at::ones({1});
  EXPECT_EQ(error_message<c10::ValueError>([&] { choose_qparams_per_tensor({}); }), "x is an undefined tensor");
  EXPECT_EQ(error_message<c10::ValueError>([&] { choose_qparams_per_channel({}); }), "x is an undefined tensor");
  EXPECT_EQ(error_message<c10::ValueError>([&] { quantize_per_tensor({}, one, one); }), "x is an undefined tensor");
  EXPECT_EQ(error_message<c10::ValueError>([&] { dequantize_per_channel({}, one, one); }), "q is an undefined tensor");
  EXPECT_EQ(error_message<c10::ValueError>([&] { quantize_per_tensor(x, {}, one); }), "scale is an undefined tensor");
  EXPECT_EQ(error_message<c10::ValueError>([&] { quantize_per_tensor(x, one, {}); }),
            "zero_point is an undefined tensor");
  EXPECT_EQ(error_message<c10::ValueError>([&] { quantize_per_tensor(x, one.to(at::kMeta), one); }),
            "scale is on meta but x is on cpu");
}

}  // namespace
}  // namespace narrowcast
