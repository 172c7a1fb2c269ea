// weight_only_int8_linear under autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include <narrowcast/weight_only_int8.h>
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/weight_only_int8/linear_cases.h"
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using test::Layer;
using test::run_linear;
using test::run_reference;
using test::same_bits;
using testing::error_message;

// Small integers and powers of two: every sum and product is exact, so gradients can be compared bit for bit.
at::Tensor whole_numbers(at::IntArrayRef sizes) { return at::randint(-4, 5, sizes, at::kFloat); }

Layer exact_layer(int64_t outputs, int64_t inputs) {
  return {at::randint(-8, 9, {outputs, inputs}, at::kChar), at::pow(2.0, at::randint(-3, 3, {outputs}, at::kFloat)),
          whole_numbers({outputs})};
}

class WeightOnlyInt8LinearAutograd : public ::testing::Test {
 protected:
  WeightOnlyInt8LinearAutograd() { at::manual_seed(11); }
};

TEST_F(WeightOnlyInt8LinearAutograd, GivesTheReferencesGradients) {
  for (const std::vector<int64_t>& leading : std::vector<std::vector<int64_t>>{{}, {3}, {7}, {2, 5}, {70}}) {
    std::vector<int64_t> sizes = leading;
    sizes.push_back(6);
    Layer layer = exact_layer(4, 6);
    layer.bias->requires_grad_();
    const at::Tensor x = whole_numbers(sizes).requires_grad_();
    const at::Tensor expected = run_reference(x, layer);
    const at::Tensor gradient = whole_numbers(expected.sizes());
    const auto expected_gradients = torch::autograd::grad({expected}, {x, *layer.bias}, {gradient});
    const auto gradients = torch::autograd::grad({run_linear(x, layer)}, {x, *layer.bias}, {gradient});
    EXPECT_TRUE(same_bits(gradients[0], expected_gradients[0]));
    EXPECT_TRUE(same_bits(gradients[1], expected_gradients[1]));
  }
}

TEST_F(WeightOnlyInt8LinearAutograd, GivesTheGradientOfOneAlone) {
  Layer layer = exact_layer(4, 6);
  const at::Tensor plain_x = whole_numbers({5, 6});
  const at::Tensor x = plain_x.clone().requires_grad_();
  const at::Tensor of_x = torch::autograd::grad({run_linear(x, layer).sum()}, {x})[0];
  EXPECT_TRUE(same_bits(of_x, layer.scales.matmul(layer.weight.to(at::kFloat)).expand({5, 6})));
  layer.bias->requires_grad_();
  EXPECT_TRUE(
      same_bits(torch::autograd::grad({run_linear(plain_x, layer).sum()}, {*layer.bias})[0], at::full({4}, 5.0)));
  layer.bias.reset();
  EXPECT_FALSE(run_linear(plain_x, layer).requires_grad());
  EXPECT_TRUE(same_bits(torch::autograd::grad({run_linear(x, layer).sum()}, {x})[0], of_x));
}

TEST_F(WeightOnlyInt8LinearAutograd, KeepsDtypes) {
  Layer layer = exact_layer(4, 6);
  layer.bias = layer.bias->to(at::kDouble).requires_grad_();
  const at::Tensor x = whole_numbers({5, 6}).to(at::kBFloat16).requires_grad_();
  run_linear(x, layer).sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(layer.bias->grad().scalar_type(), at::kDouble);
}

// Kernels that call LibTorch on other threads must disable autograd there as well.
TEST_F(WeightOnlyInt8LinearAutograd, WorksForManyRowsOnSeveralThreads) {
  const test::UseThreads several(2);
  const Layer layer = exact_layer(64, 6);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t target : test::all_instruction_sets()) {
      const test::UseInstructionSet use(target);
      const at::Tensor x = whole_numbers({70, 6}).to(dtype).requires_grad_();
      const at::Tensor y = run_linear(x, layer);
      EXPECT_TRUE(same_bits(y, run_linear(x.detach(), layer)));
      y.sum().backward();
      EXPECT_TRUE(x.grad().defined());
    }
  }
}

// The gradient is linear in the incoming gradient. The gradient of that is the layer without its bias.
TEST_F(WeightOnlyInt8LinearAutograd, HasSecondDerivatives) {
  const Layer layer = exact_layer(4, 6);
  const at::Tensor x = whole_numbers({5, 6}).requires_grad_();
  const at::Tensor gradient = whole_numbers({5, 4}).requires_grad_();
  const at::Tensor of_x =
      torch::autograd::grad({run_linear(x, layer)}, {x}, {gradient}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  const at::Tensor direction = whole_numbers({5, 6});
  const at::Tensor second = torch::autograd::grad({of_x}, {gradient}, {direction})[0];
  EXPECT_TRUE(same_bits(second, at::linear(direction, layer.weight.to(at::kFloat)) * layer.scales));
}

TEST_F(WeightOnlyInt8LinearAutograd, RefusesScalesThatRequireAGradient) {
  Layer layer = exact_layer(4, 6);
  layer.scales.requires_grad_();
  const at::Tensor x = whole_numbers({5, 6});
  EXPECT_EQ(error_message<c10::ValueError>([&] { run_linear(x, layer); }),
            "scales requires a gradient, but weight_only_int8_linear does not compute it: pass scales.detach()");
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(run_linear(x, layer).requires_grad());
}

}  // namespace
}  // namespace narrowcast
