// The kernel for row tiles, run on the CPU, on integers that float32 sums exactly.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "tests/ops/weight_only_int8/cuda/matrix_units_on_host.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"

// Must follow cuda_on_host.h, because it is CUDA C++.
#include "ops/cuda/weight_only_int8/row_tiles_kernel.cuh"

namespace narrowcast::cuda_on_host {
namespace {

struct Shape {
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
};

// The kernel's result for x and a layer whose scales have type S. Its memory is filled with 99 before.
template <class T, class S, int kUnits>
at::Tensor multiply(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& bias,
                    Turns turns) {
  const int64_t rows = x.size(0);
  const int64_t outputs = codes.size(0);
  at::Tensor y = at::full({rows, outputs}, 99, x.options());
  const cuda::Int8Layer layer{codes.const_data_ptr<int8_t>(),
                              scales.const_data_ptr<S>(),
                              bias.defined() ? bias.const_data_ptr<S>() : nullptr,
                              cuda::FloatType::kFloat32,  // Not read by the kernel.
                              x.size(1),
                              outputs};
  constexpr int64_t kRows = kUnits * cuda::kRowsOfUnit;
  const int64_t blocks = (outputs + cuda::kOutputsOfTile - 1) / cuda::kOutputsOfTile * ((rows + kRows - 1) / kRows);
  run_kernel({.blocks = blocks, .threads = cuda::kThreadsOfTile, .turns = turns}, [&] {
    cuda::multiply_row_tiles_kernel<MatrixUnitsOnHost<T>, S, kUnits>(layer, x.const_data_ptr<T>(), rows,
                                                                     y.mutable_data_ptr<T>());
  });
  return y;
}

at::Tensor exact(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& bias) {
  const at::Tensor y = x.to(at::kDouble).matmul(codes.to(at::kDouble).t()) * scales.to(at::kDouble);
  return (bias.defined() ? y + bias.to(at::kDouble) : y).to(at::kFloat).to(x.scalar_type());
}

template <class T>
class RowTilesKernel : public ::testing::Test {
 protected:
  static constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;

  template <int kUnits>
  static void expect_exact(const Shape& shape, Turns turns) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.inputs << " -> " << shape.outputs);
    const at::Tensor x = at::randint(-40, 41, {shape.rows, shape.inputs}, at::kFloat).to(kType);
    const at::Tensor codes = at::randint(-128, 128, {shape.outputs, shape.inputs}, at::kChar);
    const at::Tensor scales = at::pow(2.0, at::randint(-12, -7, {shape.outputs}, at::kFloat));
    const at::Tensor bias = at::randint(-9, 10, {shape.outputs}, at::kFloat);
    EXPECT_TRUE((multiply<T, float, kUnits>(x, codes, scales, bias, turns)).equal(exact(x, codes, scales, bias)));
    EXPECT_TRUE((multiply<T, T, kUnits>(x, codes, scales.to(kType), {}, turns)).equal(exact(x, codes, scales, {})));
  }
};

using RowTypes = ::testing::Types<c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(RowTilesKernel, RowTypes);

// Numbers of inputs for a part of one warp's step, for all warps, and for the first warps a second time.
TYPED_TEST(RowTilesKernel, MultipliesTilesOfEveryHeight) {
  for (const Turns turns : {Turns::kForward, Turns::kBackward}) {
    for (const int64_t inputs : {16, 80, 512, 656}) {
      TestFixture::template expect_exact<1>({5, inputs, 32}, turns);
      TestFixture::template expect_exact<2>({15, inputs, 33}, turns);
      TestFixture::template expect_exact<4>({32, inputs, 7}, turns);
    }
  }
}

TYPED_TEST(RowTilesKernel, MultipliesEveryTile) {
  TestFixture::template expect_exact<1>({25, 64, 70}, Turns::kForward);
  TestFixture::template expect_exact<4>({64, 64, 64}, Turns::kForward);
  TestFixture::template expect_exact<4>({65, 64, 65}, Turns::kBackward);
}

TYPED_TEST(RowTilesKernel, WidensEveryCode) {
  const at::Tensor codes = at::arange(-128, 128, at::kChar).view({16, 16});
  const at::Tensor x = at::eye(16).to(TestFixture::kType);
  const at::Tensor ones = at::ones({16});
  EXPECT_TRUE(
      (multiply<TypeParam, float, 2>(x, codes, ones, {}, Turns::kForward)).equal(codes.t().to(x.scalar_type())));
}

// Values after the last input are never part of a sum, not even times zero.
TYPED_TEST(RowTilesKernel, KeepsInfAndNanInTheirRow) {
  at::Tensor x = at::ones({9, 48}).to(TestFixture::kType);
  x[3][47] = std::numeric_limits<float>::infinity();
  x[8][0] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor codes = at::ones({32, 48}, at::kChar);
  const at::Tensor y = multiply<TypeParam, float, 2>(x, codes, at::ones({32}), {}, Turns::kForward);
  for (int64_t row = 0; row < 9; ++row) {
    EXPECT_EQ(y[row].isinf().all().template item<bool>(), row == 3);
    EXPECT_EQ(y[row].isnan().all().template item<bool>(), row == 8);
    if (row != 3 && row != 8) {
      EXPECT_TRUE(y[row].eq(48).all().template item<bool>());
    }
  }
}

}  // namespace
}  // namespace narrowcast::cuda_on_host
