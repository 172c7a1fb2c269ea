// The source of the CUDA kernels, run on the CPU, compared with gpt-fast's expression. The division by (quant_max -
// quant_min) / 2 is as in PyTorch's CUDA kernels.
#include "ops/cuda/weight_only_int8/quantize_kernel.cuh"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/cuda/launch/rows_on_host.h"

namespace narrowcast::cuda {
namespace {

using narrowcast::test::same_bits;

// Codes and scales of x [rows, n].
template <class T, class Code>
std::pair<at::Tensor, at::Tensor> quantize_on_host(const at::Tensor& x, codec::CodeRange range, int team) {
  at::Tensor codes = at::empty(x.sizes(), c10::CppTypeToScalarType<Code>::value);
  at::Tensor scales = at::empty({x.size(0)}, x.scalar_type());
  at::Tensor zero_points = at::ones({x.size(0)}, at::kLong);
  const StoreSymmetricScale<T> store{range, scales.mutable_data_ptr<T>(), zero_points.mutable_data_ptr<int64_t>()};
  test::run_reduce_rows<MagnitudeBits>(x.const_data_ptr<T>(), share_rows(x.size(0), x.size(1), 1024), team, store);
  const SymmetricCodeRows<T, Code> rows{x.const_data_ptr<T>(), scales.const_data_ptr<T>(), range,
                                        codes.mutable_data_ptr<Code>()};
  test::run_for_each_part(rows, x.size(0), x.size(1), 512, team);
  EXPECT_TRUE(zero_points.eq(0).all().item<bool>());
  return {codes, scales};
}

// Multiplies by the reciprocal in float32 instead of dividing, and rounds to x's dtype.
std::pair<at::Tensor, at::Tensor> model(const at::Tensor& x, codec::CodeRange range, at::ScalarType target) {
  const at::Tensor largest = std::get<0>(x.abs().max(1)).to(at::kFloat);
  const float reciprocal = 1.0F / (static_cast<float>(range.max - range.min) / 2);
  const at::Tensor scales = at::clamp((largest * reciprocal).to(x.scalar_type()), 0x1p-23);
  const at::Tensor whole = at::round(x / scales.unsqueeze(1));
  return {at::nan_to_num(at::clamp(whole, range.min, range.max), 0.0).to(target), scales};
}

template <class T, class Code>
void expect_model(const at::Tensor& x, codec::CodeRange range) {
  for (const int team : test::kTeams) {
    const auto [codes, scales] = quantize_on_host<T, Code>(x, range, team);
    const auto [expected, expected_scales] = model(x, range, codes.scalar_type());
    EXPECT_TRUE(same_bits(scales, expected_scales));
    EXPECT_TRUE(same_bits(codes, expected));
  }
}

template <class T>
class SymmetricQuantizeKernel : public ::testing::Test {};
using FloatTypes = ::testing::Types<float, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(SymmetricQuantizeKernel, FloatTypes);

TYPED_TEST(SymmetricQuantizeKernel, EqualsTheModelOfPyTorchOnCuda) {
  for (const auto& [name, flat] : narrowcast::test::inputs(c10::CppTypeToScalarType<TypeParam>::value, 37 * 129)) {
    for (const int64_t rows : {1, 37, 4773}) {
      SCOPED_TRACE(::testing::Message() << name << " in " << rows << " rows");
      const at::Tensor x = flat.view({rows, -1});
      expect_model<TypeParam, int8_t>(x, {-128, 127});
      expect_model<TypeParam, uint8_t>(x, {0, 255});
      expect_model<TypeParam, int8_t>(x, {-7, 7});
      if constexpr (std::is_same_v<TypeParam, float>) expect_model<float, int16_t>(x, {-32768, 32767});
    }
  }
}

TYPED_TEST(SymmetricQuantizeKernel, KeepsZeroAndHostileRowsApart) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor x = at::tensor({0.0, -0.0, 0.0, 1.0, nan, -inf, inf, -3.0, 2.0, 1e-7, -2e-7, 1e-8}, at::kDouble)
                           .view({4, 3})
                           .to(c10::CppTypeToScalarType<TypeParam>::value);
  expect_model<TypeParam, int8_t>(x, {-128, 127});
}

TEST(SymmetricScale, MultipliesByTheReciprocal) {
  const float largest = 0x1.000002p0F;
  EXPECT_EQ(codec::symmetric_scale_by_reciprocal<float>(largest, {-128, 127}), largest * (1.0F / 127.5F));
}

}  // namespace
}  // namespace narrowcast::cuda
