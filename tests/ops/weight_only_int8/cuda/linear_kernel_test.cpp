// One thread's share of the products, for all threads of a warp, on the CPU.
#include "ops/cuda/weight_only_int8/linear_kernel.cuh"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/ops/cuda/launch/rows_on_host.h"
#include "tests/ops/weight_only_int8/linear_cases.h"

namespace narrowcast::cuda {
namespace {

constexpr int kRows = 3;

// Returns the codes in the order in which they were requested, and checks that requests follow a ring of stages.
class CodesOnHost {
 public:
  static constexpr int kStages = 4;

  void request(int stage, const int8_t* first_output, const int8_t* second_output) {
    EXPECT_EQ(stage, requests_++ % kStages);
    if (first_output == nullptr) return;
    std::memcpy(&ring_[stage].of[0], first_output, kPackBytes);
    std::memcpy(&ring_[stage].of[1], second_output, kPackBytes);
  }

  CodeWords take(int stage) {
    EXPECT_EQ(stage, takes_++ % kStages);
    EXPECT_GE(requests_, takes_ + kStages - 1);
    return ring_[stage];
  }

 private:
  CodeWords ring_[kStages] = {};
  int requests_ = 0;
  int takes_ = 0;
};

// Sums over all lanes, [kRows, kOutputsOfWarp], for contiguous x and weight.
template <class T>
at::Tensor sum_on_host(const at::Tensor& x, const at::Tensor& weight, bool aligned) {
  ProductTerms<T, kRows> terms;
  terms.inputs = x.size(1);
  for (int row = 0; row < kRows; ++row) terms.x[row] = x.const_data_ptr<T>() + row * terms.inputs;
  for (int o = 0; o < kOutputsOfWarp; ++o) terms.codes[o] = weight.const_data_ptr<int8_t>() + o * terms.inputs;
  at::Tensor sums = at::zeros({kRows, kOutputsOfWarp}, at::kDouble);
  for (int rank = 0; rank < 32; ++rank) {
    CodesOnHost source;
    const Products<kRows> products =
        aligned ? sum_aligned_products(terms, {rank, 32}, source) : sum_products(terms, {rank, 32});
    for (int row = 0; row < kRows; ++row) {
      for (int o = 0; o < kOutputsOfWarp; ++o) sums[row][o] += static_cast<double>(products.of[row][o]);
    }
  }
  return sums;
}

// Integers whose products and sums float32 holds exactly.
at::Tensor whole_numbers(int64_t rows, int64_t inputs, at::ScalarType dtype) {
  return at::randint(-40, 41, {rows, inputs}, at::kFloat).to(dtype);
}

at::Tensor exact(const at::Tensor& x, const at::Tensor& weight) {
  return x.to(at::kDouble).matmul(weight.to(at::kDouble).t());
}

TEST(ProductsKernel, SumsEveryProductOnce) {
  at::manual_seed(11);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t inputs : {16, 496, 512, 528, 2048, 2064, 2560}) {
      SCOPED_TRACE(::testing::Message() << inputs << " inputs of " << dtype);
      const at::Tensor x = whole_numbers(kRows, inputs, dtype);
      const at::Tensor weight = at::randint(-128, 128, {kOutputsOfWarp, inputs}, at::kChar);
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, dtype, "sum", [&] {
        if constexpr (!std::is_same_v<scalar_t, double>) {
          EXPECT_TRUE(sum_on_host<scalar_t>(x, weight, true).equal(exact(x, weight)));
        }
      });
    }
  }
}

TEST(ProductsKernel, SumsEveryProductOnceAtAnyAlignment) {
  at::manual_seed(12);
  for (const int64_t inputs : {0, 1, 15, 17, 100, 1031}) {
    for (int64_t offset = 0; offset < 16; offset += 5) {
      SCOPED_TRACE(::testing::Message() << inputs << " inputs, codes from " << offset);
      const at::Tensor x = whole_numbers(kRows, inputs, at::kBFloat16);
      const at::Tensor memory = at::randint(-128, 128, {kOutputsOfWarp * inputs + offset}, at::kChar);
      const at::Tensor weight = memory.slice(0, offset).view({kOutputsOfWarp, inputs});
      EXPECT_TRUE(sum_on_host<c10::BFloat16>(x, weight, false).equal(exact(x, weight)));
    }
  }
}

TEST(ScaleProductsKernel, ScalesAndShiftsItsColumns) {
  at::manual_seed(13);
  const int64_t rows = 5;
  const int64_t of_layer = 70;
  for (const int64_t first : {0, 3, 40}) {
    const int64_t outputs = 30;
    const at::Tensor products = at::randn({rows, outputs});
    const at::Tensor scales = at::rand({of_layer}).to(at::kBFloat16);
    const at::Tensor bias = at::randn({of_layer}).to(at::kBFloat16);
    const at::Tensor y = at::full({rows, of_layer}, 99).to(at::kBFloat16);
    const OutputScales<c10::BFloat16> output_scales{scales.const_data_ptr<c10::BFloat16>(),
                                                    bias.const_data_ptr<c10::BFloat16>()};
    const ScaleProducts<c10::BFloat16, c10::BFloat16> scale{{products.const_data_ptr<float>(), first, outputs},
                                                            output_scales,
                                                            y.mutable_data_ptr<c10::BFloat16>(),
                                                            of_layer};
    test::run_for_each_part(scale, rows, outputs, 16, 32);
    const at::Tensor scaled = products * scales.to(at::kFloat).slice(0, first, first + outputs) +
                              bias.to(at::kFloat).slice(0, first, first + outputs);
    EXPECT_TRUE(y.slice(1, first, first + outputs).equal(scaled.to(at::kBFloat16)));
    EXPECT_TRUE(y.slice(1, 0, first).eq(99).all().item<bool>());
    EXPECT_TRUE(y.slice(1, first + outputs).eq(99).all().item<bool>());
  }
}

TEST(OutputScales, WithoutABiasChangeNoSum) {
  const float scales[] = {1};
  const OutputScale scale = OutputScales<float>{scales, nullptr}.at(0);
  EXPECT_TRUE(std::signbit(scale.apply(-0.0F)));
  EXPECT_FALSE(std::signbit(scale.apply(0.0F)));
}

}  // namespace
}  // namespace narrowcast::cuda
