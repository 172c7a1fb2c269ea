// The kernels for any processor, on integers for which every sum and product is exact.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ops/cpu/weight_only_int8/row_kernels.h"
#include "tests/ops/weight_only_int8/linear_cases.h"

namespace narrowcast::cpu {
namespace {

using test::UseInstructionSet;

constexpr float kUntouched = -12345;

// A layer with its memory.
struct ExactLayer {
  ExactLayer(int64_t outputs, int64_t inputs)
      : tensors{at::randint(-128, 128, {outputs, inputs}, at::kChar),
                at::pow(2.0, at::randint(-3, 3, {outputs}, at::kFloat)), at::randint(-9, 10, {outputs}, at::kFloat)} {}

  Int8Layer with_bias() const { return of(tensors.bias->const_data_ptr<float>()); }
  Int8Layer without_bias() const { return of(nullptr); }
  Int8Layer of(const float* bias) const {
    return {tensors.weight.const_data_ptr<int8_t>(), tensors.scales.const_data_ptr<float>(), bias,
            tensors.weight.size(1), tensors.weight.size(0)};
  }

  test::Layer tensors;
};

std::vector<Row<float>> rows_of(const at::Tensor& x, const at::Tensor& y) {
  std::vector<Row<float>> rows;
  for (int64_t row = 0; row < x.size(0); ++row) {
    rows.push_back({x.const_data_ptr<float>() + row * x.size(1), y.mutable_data_ptr<float>() + row * y.size(1)});
  }
  return rows;
}

TEST(WeightOnlyInt8RowKernels, MultiplyWholeNumbersExactly) {
  for (const int64_t target : test::all_instruction_sets()) {
    const UseInstructionSet use(target);
    for (const int64_t inputs : {0, 1, 7, 16, 33, 100}) {
      for (const int64_t outputs : {1, 4, 8, 19}) {
        for (int64_t rows = 1; rows <= kMostFewRows; ++rows) {
          SCOPED_TRACE(::testing::Message() << rows << " x " << inputs << " -> " << outputs);
          const ExactLayer layer(outputs, inputs);
          const at::Tensor x = at::randint(-9, 10, {rows, inputs}, at::kFloat);
          const at::Tensor y = at::empty({rows, outputs});
          multiply_few_rows(rows_of(x, y).data(), rows, layer.with_bias(), {0, outputs});
          EXPECT_TRUE(y.equal(test::exact_linear(x, layer.tensors).to(at::kFloat)));
        }
      }
    }
  }
}

TEST(WeightOnlyInt8RowKernels, WriteTheGivenOutputsOnly) {
  const ExactLayer layer(19, 40);
  const at::Tensor x = at::randint(-9, 10, {3, 40}, at::kFloat);
  const at::Tensor expected = test::exact_linear(x, {layer.tensors.weight, layer.tensors.scales}).to(at::kFloat);
  for (const int64_t target : test::all_instruction_sets()) {
    const UseInstructionSet use(target);
    const at::Tensor y = at::full({3, 19}, kUntouched);
    multiply_few_rows(rows_of(x, y).data(), 3, layer.without_bias(), {2, 13});
    EXPECT_TRUE(y.slice(1, 2, 13).equal(expected.slice(1, 2, 13)));
    EXPECT_TRUE(y.slice(1, 0, 2).eq(kUntouched).all().item<bool>());
    EXPECT_TRUE(y.slice(1, 13).eq(kUntouched).all().item<bool>());
  }
}

template <class T>
void expect_widened(const at::Tensor& codes) {
  at::Tensor wide = at::empty(codes.sizes(), c10::CppTypeToScalarType<T>::value);
  widen_codes(codes.const_data_ptr<int8_t>(), codes.numel(), wide.mutable_data_ptr<T>());
  EXPECT_TRUE(wide.equal(codes.to(wide.scalar_type())));
}

TEST(WeightOnlyInt8RowKernels, WidenEveryCode) {
  for (const int64_t target : test::all_instruction_sets()) {
    const UseInstructionSet use(target);
    for (const int64_t first : {-128, -127, -121}) {
      expect_widened<float>(at::arange(first, 128).to(at::kChar));
      expect_widened<c10::BFloat16>(at::arange(first, 128).to(at::kChar));
    }
  }
}

// Tests some outputs of a layer, in T.
template <class T>
void expect_scaled(const ExactLayer& layer, Range outputs) {
  const int64_t width = outputs.end - outputs.begin;
  const at::Tensor product = at::randint(-9, 10, {width}, at::kFloat).to(c10::CppTypeToScalarType<T>::value);
  const at::Tensor scaled = product.to(at::kFloat) * layer.tensors.scales.slice(0, outputs.begin, outputs.end);
  at::Tensor y = at::empty_like(product);
  scale_outputs(product.const_data_ptr<T>(), layer.without_bias(), outputs, y.mutable_data_ptr<T>());
  EXPECT_TRUE(y.equal(scaled.to(y.scalar_type())));
  scale_outputs(product.const_data_ptr<T>(), layer.with_bias(), outputs, y.mutable_data_ptr<T>());
  EXPECT_TRUE(y.equal((scaled + layer.tensors.bias->slice(0, outputs.begin, outputs.end)).to(y.scalar_type())));
}

TEST(WeightOnlyInt8RowKernels, ScaleProductsAndAddTheBias) {
  const ExactLayer layer(45, 1);
  for (const int64_t target : test::all_instruction_sets()) {
    const UseInstructionSet use(target);
    for (const Range outputs : {Range{0, 45}, Range{3, 4}, Range{5, 38}}) {
      expect_scaled<float>(layer, outputs);
      expect_scaled<c10::BFloat16>(layer, outputs);
    }
  }
}

}  // namespace
}  // namespace narrowcast::cpu
