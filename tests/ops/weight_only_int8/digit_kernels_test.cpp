// The fixed-point kernels: the processors that have them, and the inputs that suit them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "ops/cpu/weight_only_int8/digit_kernels.h"
#include "tests/ops/weight_only_int8/linear_cases.h"

namespace narrowcast::cpu {
namespace {

TEST(WeightOnlyInt8DigitKernelTable, IsThereWithVnniOnly) {
  for (const int64_t target : test::all_instruction_sets()) {
    const test::UseInstructionSet use(target);
    EXPECT_EQ(digit_kernels<float>() != nullptr, target == HWY_AVX3_DL);
    EXPECT_EQ(digit_kernels<c10::BFloat16>() != nullptr, target == HWY_AVX3_DL);
  }
}

class WeightOnlyInt8DigitKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (digit_kernels<float>() == nullptr) GTEST_SKIP() << "this processor has no VNNI";
    at::manual_seed(3);
  }
};

template <class T>
int64_t planes_for(const at::Tensor& x) {
  const at::Tensor row = x.to(c10::CppTypeToScalarType<T>::value).contiguous();
  return digit_kernels<T>()->planes_for(row.template const_data_ptr<T>(), row.numel());
}

template <class T>
void expect_planes_for_magnitudes(int64_t least) {
  const at::Tensor ones = at::ones({1000});
  EXPECT_EQ(planes_for<T>(ones), least);
  EXPECT_EQ(planes_for<T>(at::randn({1000})), least);
  EXPECT_EQ(planes_for<T>(at::zeros({10})), least);
  EXPECT_EQ(planes_for<T>(at::empty({0})), least);
  EXPECT_EQ(planes_for<T>(ones * 0x1p100), least);
  EXPECT_EQ(planes_for<T>(ones * 0x1p101), 0);
  EXPECT_EQ(planes_for<T>(ones * -0x1p-100), least);
  EXPECT_EQ(planes_for<T>(ones * 0x1p-101), 0);
}

TEST_F(WeightOnlyInt8DigitKernels, SuitRowsOfAnyOrdinaryMagnitude) {
  expect_planes_for_magnitudes<float>(3);
  expect_planes_for_magnitudes<c10::BFloat16>(2);
}

TEST_F(WeightOnlyInt8DigitKernels, SuitRowsOfFiniteAndNotTooUnequalValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  // 999 ones and one x have the mean (999 + x) / 1000. x is 64 times the mean at 999 * 64 / 936 = 68.3.
  for (const auto& [outlier, expected] : std::vector<std::pair<float, bool>>{
           {68, true}, {-68, true}, {69, false}, {-69, false}, {kInf, false}, {-kInf, false}, {std::nanf(""), false}}) {
    at::Tensor x = at::ones({1000});
    x[777] = outlier;
    EXPECT_EQ(planes_for<float>(x), expected ? 3 : 0) << outlier;
    EXPECT_EQ(planes_for<c10::BFloat16>(x), expected ? 2 : std::isfinite(outlier) ? 3 : 0) << outlier;
  }
}

// One value and 59999 zeros: the value is 60000 times the mean. With 59999 values of 2 it is 12874 times the mean.
TEST_F(WeightOnlyInt8DigitKernels, SuitNoRowOfAlmostNothingButOneValue) {
  at::Tensor x = at::zeros({60000});
  x[0] = 0x1p15;
  EXPECT_EQ(planes_for<c10::BFloat16>(x), 0);
  x.slice(0, 1, 60000).fill_(2);
  EXPECT_EQ(planes_for<c10::BFloat16>(x), 3);
  EXPECT_EQ(planes_for<float>(x), 0);
}

}  // namespace
}  // namespace narrowcast::cpu
