// The kernels of symmetric quantisation, compared with PyTorch's operators on every instruction set.
#include "ops/cpu/weight_only_int8/quantize_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/weight_only_int8/reference.h"

namespace narrowcast::cpu {
namespace {

using test::instruction_sets;
using test::reference_quantize;
using test::same_bits;
using test::UseInstructionSet;

template <class T>
class WeightOnlyInt8QuantizeKernels : public ::testing::Test {
 protected:
  static constexpr at::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

  // Expects that one row through the kernels equals the reference.
  template <class Code>
  void expect_reference(const at::Tensor& x, CodeRange range) {
    constexpr at::ScalarType kTarget = c10::CppTypeToScalarType<Code>::value;
    const auto [expected, scales, unused] = reference_quantize(x.unsqueeze(0), range.min, range.max, kTarget);
    for (const int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      const T* const data = x.const_data_ptr<T>();
      const T scale = codec::symmetric_scale<T>(find_largest_magnitude(data, x.numel()), range);
      EXPECT_TRUE(same_bits(at::full({1}, static_cast<float>(scale), kDtype), scales));
      at::Tensor codes = at::empty({x.numel()}, kTarget);
      quantize_symmetric(data, x.numel(), scale, range, codes.mutable_data_ptr<Code>());
      EXPECT_TRUE(same_bits(codes, expected[0]));
    }
  }

 private:
  test::UseThreads one_{1};
};

using ElementTypes = ::testing::Types<float, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(WeightOnlyInt8QuantizeKernels, ElementTypes);

TYPED_TEST(WeightOnlyInt8QuantizeKernels, EqualPyTorchOnEverySizeAndInput) {
  for (const int64_t size : test::kSizes) {
    if (size == 0) continue;
    for (const auto& [name, x] : test::inputs(this->kDtype, size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      this->template expect_reference<int8_t>(x, {-128, 127});
      this->template expect_reference<uint8_t>(x, {0, 255});
    }
  }
}

TYPED_TEST(WeightOnlyInt8QuantizeKernels, EqualPyTorchOnEveryRange) {
  for (const auto& [name, x] : test::inputs(this->kDtype, 1029)) {
    SCOPED_TRACE(name);
    for (const CodeRange range : {CodeRange{-127, 127}, CodeRange{-8, 7}, CodeRange{0, 1}, CodeRange{-1, 0},
                                  CodeRange{5, 100}, CodeRange{-100, -5}}) {
      SCOPED_TRACE(::testing::Message() << range.min << " to " << range.max);
      this->template expect_reference<int8_t>(x, range);
    }
  }
}

template <class T>
class WeightOnlyInt8NarrowFloats : public WeightOnlyInt8QuantizeKernels<T> {};

using NarrowTypes = ::testing::Types<c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(WeightOnlyInt8NarrowFloats, NarrowTypes);

// Every pattern of 16 bits is in some row.
TYPED_TEST(WeightOnlyInt8NarrowFloats, EqualPyTorchOnEveryBitPattern) {
  const at::Tensor patterns = at::arange(65536, at::kInt).to(at::kShort).view(this->kDtype).view({-1, 64});
  for (int64_t row = 0; row < patterns.size(0); ++row) {
    SCOPED_TRACE(row);
    this->template expect_reference<int8_t>(patterns[row], {-128, 127});
  }
}

class WeightOnlyInt8WideCodes : public WeightOnlyInt8QuantizeKernels<float> {};

TEST_F(WeightOnlyInt8WideCodes, EqualPyTorch) {
  for (const auto& [name, x] : test::inputs(at::kFloat, 1029)) {
    SCOPED_TRACE(name);
    expect_reference<int16_t>(x, {-32768, 32767});
    expect_reference<int16_t>(x, {0, 300});
  }
}

TEST(WeightOnlyInt8LargestMagnitude, OfNothingIsZeroAndNanStays) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float with_nan[] = {1, -nan, -std::numeric_limits<float>::infinity()};
  for (const int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    EXPECT_EQ(find_largest_magnitude<float>(nullptr, 0), 0);
    EXPECT_TRUE(std::isnan(find_largest_magnitude(with_nan, 3)));
  }
}

}  // namespace
}  // namespace narrowcast::cpu
