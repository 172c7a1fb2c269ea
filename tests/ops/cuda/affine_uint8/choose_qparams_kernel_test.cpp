// The source of the CUDA kernels, run on the CPU, against ATen's operators with the
// division by 255 as PyTorch's CUDA kernels have it.
#include "ops/cuda/affine_uint8/choose_qparams_kernel.cuh"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "tests/ops/affine_uint8_reference.h"
#include "tests/ops/cuda/rows/run_on_host.h"

namespace narrowcast::cuda {
namespace {

using narrowcast::test::same_bits;

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

// MinMaxObserver on CUDA: as on the CPU but for the scale.
std::pair<at::Tensor, at::Tensor> model(const at::Tensor& x) {
  const auto [least, greatest] = at::aminmax(x.to(at::kFloat));
  const at::Tensor zero = at::zeros({});
  const at::Tensor min = at::min(least, zero);
  const at::Tensor max = at::max(greatest, zero);
  const at::Tensor scale = at::max((max - min) * (1.0F / 255.0F), at::full({}, 0x1p-23F));
  const at::Tensor steps = at::nan_to_num(at::round(min / scale));
  return {scale, at::clamp(at::rsub(steps, 0), 0, 255).to(at::kInt)};
}

TEST(ChooseQparamsKernel, EqualsTheModelOfPyTorchOnCuda) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t size : {1, 7, 127, 129, 4096, 20011}) {
      for (const auto& [name, x] : narrowcast::test::inputs(dtype, size)) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << name << " of size " << size);
        const auto [scale, zero_point] = choose_on_host(x.unsqueeze(0), share_rows(1, size, 1024), 256);
        const auto [expected_scale, expected_zero_point] = model(x);
        EXPECT_TRUE(same_bits(scale[0], expected_scale));
        EXPECT_TRUE(same_bits(zero_point[0], expected_zero_point));
      }
    }
  }
}

// Some scale is one that division gives another last bit.
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
        const auto [scale, zero_point] = model(x[row]);
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

}  // namespace
}  // namespace narrowcast::cuda
