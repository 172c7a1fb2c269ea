// Fixed-point sums are exact where they should be.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <narrowcast/weight_only_int8.h>
#include "ops/cpu/weight_only_int8/digit_kernels.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/weight_only_int8/linear_cases.h"

namespace narrowcast::cpu {
namespace {

using test::Layer;
using test::same_bits;

class WeightOnlyInt8Digits : public ::testing::Test {
 protected:
  void SetUp() override {
    if (digit_kernels<float>() == nullptr) GTEST_SKIP() << "this processor has no VNNI";
    at::manual_seed(3);
  }
};

// Integers that three digits hold, including the extremes. The sums, and so the results, are those of float64, rounded
// once.
TEST_F(WeightOnlyInt8Digits, AreExactForWholeNumbers) {
  constexpr int64_t kMost = 8355711;
  for (const int64_t inputs : {1, 3, 15, 16, 63, 64, 65, 130, 1023, 1024, 1025, 2500}) {
    for (const int64_t outputs : {1, 4, 15, 16, 17, 50}) {
      for (const int64_t rows : {1, 2, 3, 5, 6, 7, 20}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << inputs << " -> " << outputs);
        at::Tensor x = at::randint(-kMost, kMost + 1, {rows, inputs}, at::kLong);
        x.select(1, inputs / 2).fill_(kMost);
        x[rows - 1].fill_(-kMost);
        Layer layer = test::random_layer(outputs, inputs);
        layer.weight[0].fill_(-128);
        const at::Tensor y = weight_only_int8_linear(x.to(at::kFloat), layer.weight, layer.scales, layer.bias);
        EXPECT_TRUE(same_bits(y, test::exact_linear(x, layer).to(at::kFloat)));
      }
    }
  }
}

// The same for two digits: bfloat16 holds integers up to 256, and these times 64. The results are rounded to float32
// and to bfloat16.
TEST_F(WeightOnlyInt8Digits, AreExactForWholeNumbersInBfloat16) {
  for (const int64_t inputs : {1, 63, 65, 1025, 2500}) {
    for (const int64_t outputs : {1, 31, 32, 33, 70}) {
      for (const int64_t rows : {1, 3, 4, 5, 6, 9, 11, 64}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << inputs << " -> " << outputs);
        const at::Tensor x =
            at::randint(-256, 257, {rows, inputs}, at::kLong) * at::where(at::rand({rows, 1}) < 0.5, 1, 64);
        const Layer layer = test::random_layer(outputs, inputs);
        const at::Tensor y = weight_only_int8_linear(x.to(at::kBFloat16), layer.weight, layer.scales, layer.bias);
        EXPECT_TRUE(same_bits(y, test::exact_linear(x, layer).to(at::kFloat).to(at::kBFloat16)));
      }
    }
  }
}

// Sums of int32 at their limits: 65536 inputs with the largest digits. One more input uses another kernel. The rows
// have more digits than are kept at a time.
TEST_F(WeightOnlyInt8Digits, HoldTheLargestSums) {
  for (const int64_t inputs : {kMostDigitInputs, kMostDigitInputs + 1}) {
    for (const double sign : {1.0, -1.0}) {
      const Layer layer{at::cat({at::full({1, inputs}, 127, at::kChar), at::full({1, inputs}, -128, at::kChar)}),
                        at::ones({2})};
      const at::Tensor x = at::full({45, inputs}, sign * (127 * 65536 - 128 * 256 - 128));
      const at::Tensor y = weight_only_int8_linear(x, layer.weight, layer.scales);
      EXPECT_TRUE(test::within_bound(y, x, layer));
      if (inputs == kMostDigitInputs) {
        EXPECT_TRUE(same_bits(y, test::exact_linear(x, layer).to(at::kFloat)));
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::cpu
