#include "ops/operators/without_derivative.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <narrowcast/affine_uint8.h>
#include "tests/ops/affine_uint8/reference.h"

namespace narrowcast::autograd {
namespace {

void expect_backward_names(const at::Tensor& output, const std::string& name) {
  ASSERT_TRUE(output.requires_grad());
  try {
    output.sum().backward();
    FAIL() << "backward did not throw";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("derivative for " + name + " is not implemented"));
  }
}

void add_in_place(const at::Tensor& input, const at::Tensor& output) {
  write_without_derivative("test::add", input, output, [&] { output.add_(input); });
}

TEST(WriteWithoutDerivative, WritesAndMakesBackwardThrow) {
  const at::Tensor input = at::ones({2}).requires_grad_();
  const at::Tensor output = at::ones({2});
  add_in_place(input, output);
  EXPECT_EQ(output.sum().item<float>(), 4);
  expect_backward_names(output, "test::add");
}

// The former value of the output has a gradient. It must not be computed without the input's gradient.
TEST(WriteWithoutDerivative, CoversWhatTheOutputWasBefore) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  const at::Tensor output = x * 2;
  add_in_place(at::ones({2}), output);
  EXPECT_ANY_THROW(output.sum().backward());
  EXPECT_FALSE(x.grad().defined());
}

TEST(WriteWithoutDerivative, LeavesOthersWithoutHistory) {
  const at::Tensor output = at::ones({2});
  add_in_place(at::ones({2}), output);
  EXPECT_FALSE(output.requires_grad());
  const at::NoGradGuard no_grad;
  add_in_place(at::ones({2}).requires_grad_(), output);
  EXPECT_FALSE(output.requires_grad());
}

TEST(WriteWithoutDerivative, RefusesALeafBeforeWriting) {
  const at::Tensor leaf = at::ones({2}).requires_grad_();
  EXPECT_ANY_THROW(add_in_place(at::ones({2}), leaf));
  EXPECT_EQ(leaf.sum().item<float>(), 2);
}

TEST(WriteWithoutDerivative, CountsAsAChangeOfTheOutput) {
  const at::Tensor output = at::ones({2});
  const int64_t version = output._version();
  add_in_place(at::ones({2}), output);
  EXPECT_GT(output._version(), version);
}

TEST(WriteWithoutDerivative, SkipsUndefinedTensors) {
  int writes = 0;
  write_without_derivative("test::nothing", at::Tensor(), at::Tensor(), [&] { ++writes; });
  EXPECT_EQ(writes, 1);
}

at::Tensor needing_gradient() { return at::randn({3, 5}).requires_grad_(); }

TEST(OperatorsWithoutDerivative, BackwardThroughTheScaleThrows) {
  const at::Tensor x = needing_gradient();
  expect_backward_names(std::get<0>(choose_qparams_per_tensor(x)), "narrowcast::choose_qparams_per_tensor");
  expect_backward_names(std::get<0>(choose_qparams_per_channel(x)), "narrowcast::choose_qparams_per_channel");
}

TEST(OperatorsWithoutDerivative, BackwardThroughDecodedValuesThrows) {
  const at::Tensor codes = at::zeros({3, 5}, at::kByte);
  const at::Tensor scale = at::ones({1}).requires_grad_();
  const at::Tensor scales = at::ones({3}).requires_grad_();
  expect_backward_names(dequantize_per_tensor(codes, scale, at::zeros({1})), "narrowcast::dequantize_per_tensor");
  expect_backward_names(dequantize_per_channel(codes, scales, at::zeros({3})), "narrowcast::dequantize_per_channel");
}

// A loss that depends on x both through the round trip and directly must not get half a gradient.
TEST(OperatorsWithoutDerivative, RoundTripIsNoSilentConstant) {
  const at::Tensor x = needing_gradient();
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  EXPECT_FALSE(codes.requires_grad());
  const at::Tensor loss = (x + dequantize_per_tensor(codes, scale, zero_point)).sum();
  EXPECT_ANY_THROW(loss.backward());
}

TEST(OperatorsWithoutDerivative, WorksWithoutGradAndOnDetachedTensors) {
  const at::Tensor x = needing_gradient();
  const auto [expected, expected_zero_point] = choose_qparams_per_tensor(x.detach());
  EXPECT_FALSE(expected.requires_grad());
  const at::NoGradGuard no_grad;
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  EXPECT_FALSE(scale.requires_grad());
  EXPECT_TRUE(test::same_bits(scale, expected));
  EXPECT_TRUE(test::same_bits(quantize_per_tensor(x, scale, zero_point),
                              quantize_per_tensor(x.detach(), expected, expected_zero_point)));
}

}  // namespace
}  // namespace narrowcast::autograd
