// The source of the CUDA kernels, run on the CPU, compared with ATen's operators in the order and with the rounding of
// PyTorch's CUDA kernels.
#include "ops/cuda/affine_uint8/affine_uint8_kernel.cuh"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/ops/affine_uint8/cuda/affine_model.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/cuda/launch/rows_on_host.h"

namespace narrowcast::cuda {
namespace {

using narrowcast::test::qparams_model;
using narrowcast::test::quantized_model;
using narrowcast::test::same_bits;

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The qparams of each row of x [rows, n].
std::pair<at::Tensor, at::Tensor> choose_on_host(const at::Tensor& x, const RowParts& parts, int team) {
  at::Tensor scales = at::empty({x.size(0)});
  at::Tensor zero_points = at::empty({x.size(0)}, at::kInt);
  const StoreQparams store{{scales.mutable_data_ptr<float>(), zero_points.mutable_data_ptr<int32_t>()}};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "choose_qparams", [&] {
    test::run_reduce_rows<RangeBits>(x.const_data_ptr<scalar_t>(), parts, team, store);
  });
  return {scales, zero_points};
}

TEST(ChooseQparamsKernel, EqualsTheModelOfPyTorchOnCuda) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t size : {1, 7, 127, 129, 4096, 20011}) {
      for (const auto& [name, x] : narrowcast::test::inputs(dtype, size)) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << name << " of size " << size);
        const auto [scale, zero_point] = choose_on_host(x.unsqueeze(0), share_rows(1, size, 1024), 256);
        const auto [expected_scale, expected_zero_point] = qparams_model(x);
        EXPECT_TRUE(same_bits(scale[0], expected_scale));
        EXPECT_TRUE(same_bits(zero_point[0], expected_zero_point));
      }
    }
  }
}

// A range for which a division gives another last bit of the scale.
TEST(ChooseQparamsKernel, MultipliesByTheReciprocal) {
  const codec::AffineRange range{0, 7};
  EXPECT_EQ(codec::choose_qparams_by_reciprocal(range).scale, 7 * (1.0F / 255.0F));
  EXPECT_NE(codec::choose_qparams_by_reciprocal(range).scale, codec::choose_qparams(range).scale);
}

TEST(ChooseQparamsKernel, KeepsRowsApartAtAnyAlignment) {
  at::manual_seed(6);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor memory = (at::randn({7 * 531 + 8}) * at::rand({7 * 531 + 8})).to(dtype);
    for (int64_t offset = 0; offset < 8; ++offset) {
      const at::Tensor x = memory.slice(0, offset, offset + 7 * 531).view({7, 531});
      const auto [scales, zero_points] = choose_on_host(x, share_rows_for_reduction(7, 531), 32);
      for (int64_t row = 0; row < 7; ++row) {
        const auto [scale, zero_point] = qparams_model(x[row]);
        EXPECT_TRUE(same_bits(scales[row], scale));
        EXPECT_TRUE(same_bits(zero_points[row], zero_point));
      }
    }
  }
}

codec::AffineRange range_of(const std::vector<float>& values) {
  RangeBits bits;
  for (const float value : values) bits.add(value);
  return bits.range();
}

TEST(RangeBits, HoldZeroAndBothEnds) {
  const auto expect = [](const std::vector<float>& values, float min, float max) {
    EXPECT_EQ(range_of(values).min, min);
    EXPECT_EQ(range_of(values).max, max);
  };
  expect({}, 0, 0);
  expect({3, 2}, 0, 3);
  expect({-3, -2}, -3, 0);
  expect({-0.0F, 1e-45F}, 0, 1e-45F);
  expect({5, -kInf, 7}, -kInf, 7);
  expect({kInf, 7}, 0, kInf);
}

TEST(RangeBits, KeepNanOfEitherSign) {
  for (const std::vector<float>& values : {std::vector<float>{1, kNan}, {-1, -kNan}, {-kInf, kNan}, {-kNan, kInf}}) {
    const codec::AffineRange range = range_of(values);
    EXPECT_NE(range.min, range.min);
    EXPECT_NE(range.max, range.max);
  }
}

QparamsIn qparams_of(const at::Tensor& scales, const at::Tensor& zero_points) {
  const bool ints = zero_points.scalar_type() == at::kInt;
  return {scales.const_data_ptr<float>(), ints ? zero_points.const_data_ptr<int32_t>() : nullptr,
          ints ? nullptr : zero_points.const_data_ptr<float>()};
}

// Codes of x [rows, n]; they begin `offset` bytes after an aligned address.
at::Tensor quantize_on_host(const at::Tensor& x, const QparamsIn& qparams, int64_t most, int64_t offset = 0) {
  const at::Tensor memory = at::full({x.numel() + 32}, 99, at::kByte);
  const at::Tensor codes = memory.slice(0, offset, offset + x.numel());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "quantize", [&] {
    const QuantizeRows<scalar_t> rows{x.const_data_ptr<scalar_t>(), qparams, codes.mutable_data_ptr<uint8_t>()};
    test::run_for_each_part(rows, x.size(0), x.size(1), most, offset % 2 == 0 ? 32 : 256);
  });
  EXPECT_TRUE(memory.slice(0, 0, offset).eq(99).all().item<bool>());
  EXPECT_TRUE(memory.slice(0, offset + x.numel()).eq(99).all().item<bool>());
  return codes.view(x.sizes());
}

TEST(QuantizeKernel, EqualsTheModelOfPyTorchOnCuda) {
  const at::Tensor scales =
      at::tensor({0x1p-23F, 0x1.103b08p-15F, 0x1.818182p-7F, 0.3F, 1.0F, 117.3F, 1e-30F, 3e38F, 0.0F, 70000.0F,
                  std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()});
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [name, x] : narrowcast::test::inputs(dtype, 1537)) {
      for (int64_t i = 0; i < scales.numel(); ++i) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << name << " with scale " << scales[i].item<float>());
        const at::Tensor zero_point = at::full({}, 29 * i % 256, at::kInt);
        const at::Tensor codes = quantize_on_host(x.unsqueeze(0), qparams_of(scales[i], zero_point), 512);
        EXPECT_TRUE(same_bits(codes[0], quantized_model(x, scales[i], zero_point)));
      }
    }
  }
}

// All values of the 16-bit types, with typical scales of gradients.
TEST(QuantizeKernel, EqualsTheModelForEveryValueOfSixteenBits) {
  at::manual_seed(3);
  const at::Tensor scales = at::pow(10.0, at::rand({40}) * 9 - 7).to(at::kFloat);
  const at::Tensor bits = at::arange(-32768, 32768, at::kInt).to(at::kShort);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = bits.view(dtype);
    for (int64_t i = 0; i < scales.numel(); ++i) {
      const at::Tensor zero_point = at::full({}, 255 - 6 * i, at::kInt);
      const at::Tensor codes = quantize_on_host(x.unsqueeze(0), qparams_of(scales[i], zero_point), 16384);
      EXPECT_TRUE(same_bits(codes[0], quantized_model(x, scales[i], zero_point))) << dtype << " " << i;
    }
  }
}

TEST(QuantizeKernel, RoundsHalvesToEven) {
  const at::Tensor x = (at::arange(-300, 300, at::kFloat) + 0.5F) * 0.125F;
  const at::Tensor scale = at::full({}, 0.125F);
  const at::Tensor zero_point = at::full({}, 128, at::kInt);
  EXPECT_TRUE(same_bits(quantize_on_host(x.unsqueeze(0), qparams_of(scale, zero_point), 128)[0],
                        quantized_model(x, scale, zero_point)));
}

TEST(QuantizeKernel, GivesEachRowItsOwnQparamsAtAnyAlignment) {
  at::manual_seed(4);
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t row_size : {1, 3, 16, 37, 130, 512}) {
      const int64_t rows = 7;
      const at::Tensor x = at::randn({rows * row_size + 8}).to(dtype);
      const at::Tensor scales = at::rand({rows}) * 0.05 + 0.001;
      const at::Tensor zero_points = at::randint(0, 256, {rows}, at::kInt);
      for (int64_t offset = 0; offset < 8; ++offset) {
        SCOPED_TRACE(::testing::Message() << dtype << " rows of " << row_size << " from " << offset);
        const at::Tensor matrix = x.slice(0, offset, offset + rows * row_size).view({rows, row_size});
        const at::Tensor codes = quantize_on_host(matrix, qparams_of(scales, zero_points), 64, 2 * offset + offset % 3);
        for (int64_t row = 0; row < rows; ++row) {
          EXPECT_TRUE(same_bits(codes[row], quantized_model(matrix[row], scales[row], zero_points[row])));
        }
      }
    }
  }
}

TEST(DequantizeKernel, EqualsTheModelForEveryCodeAtAnyAlignment) {
  at::manual_seed(5);
  const int64_t rows = 5;
  const at::Tensor scales = at::tensor({0x1p-23F, 0.3F, 1e30F, std::numeric_limits<float>::infinity(), 0.1F});
  const at::Tensor zero_points = at::tensor({0, 255, 77, 0, 128}, at::kInt);
  for (const at::Tensor& zeros : {zero_points, zero_points.to(at::kFloat)}) {
    for (const int64_t row_size : {1, 256, 611}) {
      for (int64_t offset = 0; offset < 5; ++offset) {
        const at::Tensor bytes = at::arange(rows * row_size + offset, at::kInt).to(at::kByte);
        const at::Tensor q = bytes.slice(0, offset).view({rows, row_size});
        const at::Tensor decoded = at::full({rows * row_size + offset}, -7.0F);
        const DequantizeRows dequantize{q.const_data_ptr<uint8_t>(), qparams_of(scales, zeros),
                                        decoded.mutable_data_ptr<float>() + offset};
        test::run_for_each_part(dequantize, rows, row_size, 128, 32);
        const at::Tensor expected =
            narrowcast::test::dequantize_backend(q, scales.unsqueeze(1), zero_points.unsqueeze(1));
        EXPECT_TRUE(same_bits(decoded.slice(0, offset).view(q.sizes()), expected)) << row_size << " from " << offset;
        EXPECT_TRUE(decoded.slice(0, 0, offset).eq(-7).all().item<bool>());
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::cuda
