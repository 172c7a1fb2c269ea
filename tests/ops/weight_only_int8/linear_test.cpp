// weight_only_int8_linear on the CPU: values on every instruction set, threads, TorchScript, the meta device, and
// errors.
#include <ATen/ATen.h>
#include <ATen/cpu/Utils.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/weight_only_int8.h>
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/weight_only_int8/linear_cases.h"
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using test::kLinearDtypes;
using test::Layer;
using test::random_layer;
using test::run_linear;
using test::same_bits;
using test::within_bound;
using testing::error_message;

// The largest batch in which each row has the same bits, independent of the other rows and the threads. This requires
// VNNI.
int64_t most_independent_rows(at::ScalarType dtype) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto amx = capabilities.find("amx_bf16");
  const bool is_dense_from_65_rows = dtype == at::kBFloat16 && amx != capabilities.end() && amx->second.toBool();
  return is_dense_from_65_rows ? 64 : 200;
}

class WeightOnlyInt8LinearOperator : public ::testing::Test {
 protected:
  WeightOnlyInt8LinearOperator() { at::manual_seed(7); }

 private:
  test::UseThreads one_{1};
};

TEST_F(WeightOnlyInt8LinearOperator, IsExactWithinItsBoundOnEveryInstructionSet) {
  struct Shape {
    int64_t inputs, outputs;
  };
  for (const int64_t target : test::all_instruction_sets()) {
    const test::UseInstructionSet use(target);
    for (const auto& [inputs, outputs] : std::vector<Shape>{{1, 1}, {7, 5}, {64, 16}, {65, 17}, {257, 35}, {1100, 3}}) {
      test::expect_exact_within_bound(random_layer(outputs, inputs), {1, 2, 3, 4, 5, 6, 7, 16, 33, 64, 65, 70});
    }
  }
}

// Includes rows whose values are too unequal for fixed point.
TEST_F(WeightOnlyInt8LinearOperator, IsAsExactForRowsOfAnyMagnitudes) {
  const Layer layer{at::randint(-128, 128, {20, 300}, at::kChar), at::rand({20}) + 0.5};
  for (const int64_t target : test::all_instruction_sets()) {
    const test::UseInstructionSet use(target);
    at::Tensor x = at::randn({12, 300});
    x[0] *= 1e-36;
    x[1] *= 1e34;
    x[2].zero_();
    x[3][17] = 1e6;
    x[4].slice(0, 1).zero_();
    x[5] *= at::pow(10.0, at::rand({300}) * 60 - 30);
    const at::Tensor y = run_linear(x, layer);
    EXPECT_TRUE(within_bound(y, x, layer));
    // The outlier meets a zero weight: the rest must be as exact as without it.
    Layer zero = layer;
    zero.weight = layer.weight.clone();
    zero.weight.select(1, 17).zero_();
    at::Tensor calm = x.clone();
    calm[3][17] = 0;
    const at::Tensor bound = test::linear_bound(calm[3], zero);
    EXPECT_TRUE((run_linear(x, zero)[3] - test::exact_linear(calm[3], zero)).abs().le(bound).all().item<bool>());
    EXPECT_EQ(y[2].abs().max().item<float>(), 0);
  }
}

TEST_F(WeightOnlyInt8LinearOperator, PassesInfAndNanOn) {
  const Layer layer = random_layer(19, 70);
  for (const int64_t target : test::all_instruction_sets()) {
    const test::UseInstructionSet use(target);
    test::expect_passes_inf_and_nan_on(layer);
  }
}

TEST_F(WeightOnlyInt8LinearOperator, GivesEqualBitsOnAnyNumberOfThreads) {
  const Layer layer = random_layer(517, 1030);
  for (const int64_t target : test::all_instruction_sets()) {
    const test::UseInstructionSet use(target);
    // If the dense kernel computes many rows, the promise holds only for few.
    const std::vector<int64_t> batches =
        target == HWY_AVX3_DL ? std::vector<int64_t>{1, 4, 5, 64, 150} : std::vector<int64_t>{1, 4};
    for (const int64_t rows : batches) {
      for (const at::ScalarType dtype : kLinearDtypes) {
        if (rows > most_independent_rows(dtype)) continue;
        const at::Tensor x = at::randn({rows, 1030}).to(dtype);
        const test::UseThreads one(1);
        const at::Tensor expected = run_linear(x, layer);
        for (const int threads : {2, 3}) {
          const test::UseThreads several(threads);
          EXPECT_TRUE(same_bits(run_linear(x, layer), expected)) << rows << " " << dtype << " " << threads;
        }
      }
    }
  }
}

TEST_F(WeightOnlyInt8LinearOperator, GivesARowTheSameBitsInAnyBatch) {
  if ((hwy::SupportedTargets() & HWY_AVX3_DL) == 0) GTEST_SKIP() << "promised for processors with VNNI";
  const Layer layer = random_layer(45, 2100);
  for (const at::ScalarType dtype : kLinearDtypes) {
    at::Tensor x = at::randn({most_independent_rows(dtype), 2100});
    x[7][3] = 1e4;  // Not suitable for fixed point, or for two digits.
    x[5][8] = std::numeric_limits<double>::infinity();
    x = x.to(dtype);
    const at::Tensor expected = run_linear(x, layer);
    for (const int64_t first : {0, 3, 14}) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 7, 50}) {
        EXPECT_TRUE(
            same_bits(run_linear(x.slice(0, first, first + rows), layer), expected.slice(0, first, first + rows)));
      }
    }
  }
}

TEST(WeightOnlyInt8LinearMeta, KnowsItsOutput) {
  const at::TensorOptions meta = at::device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor x = at::empty({3, 2, 6}, meta).transpose(0, 1);
  const at::Tensor weight = at::empty({5, 6}, meta.dtype(at::kChar));
  const at::Tensor y = weight_only_int8_linear(x, weight, at::empty({5}, meta.dtype(at::kFloat)));
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 3, 5}));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(y.is_contiguous());
}

// A valid call; each test changes one argument.
struct Call {
  at::Tensor input = at::ones({2, 6});
  at::Tensor weight = at::ones({5, 6}, at::kChar);
  at::Tensor scales = at::ones({5});
  std::optional<at::Tensor> bias = at::ones({5});
};

template <class Error>
std::string refusal(const Call& call) {
  return error_message<Error>([&] { weight_only_int8_linear(call.input, call.weight, call.scales, call.bias); });
}

TEST(WeightOnlyInt8LinearErrors, NameTheTypeThatIsWrong) {
  EXPECT_EQ(refusal<c10::TypeError>({}), "nothing was thrown");
  EXPECT_EQ(refusal<c10::TypeError>({.input = at::ones({2, 6}, at::kInt)}),
            "input must be float32, float64, bfloat16 or float16, not Int");
  EXPECT_EQ(refusal<c10::TypeError>({.weight = at::ones({5, 6})}), "weight must be int8, not Float");
  EXPECT_EQ(refusal<c10::TypeError>({.scales = at::ones({5}, at::kInt)}),
            "scales must be float32, float64, bfloat16 or float16, not Int");
  EXPECT_EQ(refusal<c10::TypeError>({.bias = at::ones({5}, at::kLong)}),
            "bias must be float32, float64, bfloat16 or float16, not Long");
}

TEST(WeightOnlyInt8LinearErrors, NameTheShapeThatIsWrong) {
  EXPECT_EQ(refusal<c10::ValueError>({.input = at::ones({})}),
            "input must have a last dimension, the layer's inputs, but is 0-dimensional");
  EXPECT_EQ(refusal<c10::ValueError>({.input = at::ones({2, 5})}),
            "weight of shape [5, 6] needs input with a last dimension of 6, but input has shape [2, 5]");
  EXPECT_EQ(refusal<c10::ValueError>({.weight = at::ones({6}, at::kChar)}),
            "weight must have shape [out, in], but has shape [6]");
  EXPECT_EQ(refusal<c10::ValueError>({.scales = at::ones({6})}),
            "scales must have shape [5], one value per output of weight, but has shape [6]");
  EXPECT_EQ(refusal<c10::ValueError>({.bias = at::ones({5, 1})}),
            "bias must have shape [5], one value per output of weight, but has shape [5, 1]");
}

TEST(WeightOnlyInt8LinearErrors, NameTheTensorThatIsUndefinedOrElsewhere) {
  EXPECT_EQ(refusal<c10::ValueError>({.input = {}}), "input is an undefined tensor");
  EXPECT_EQ(refusal<c10::ValueError>({.weight = {}}), "weight is an undefined tensor");
  EXPECT_EQ(refusal<c10::ValueError>({.scales = {}}), "scales is an undefined tensor");
  EXPECT_EQ(refusal<c10::ValueError>({.bias = at::Tensor()}), "bias is an undefined tensor");
  EXPECT_EQ(refusal<c10::ValueError>({.scales = at::ones({5}, at::kMeta)}), "scales is on meta but input is on cpu");
}

}  // namespace
}  // namespace narrowcast
