#include "ops/without_derivative.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace narrowcast::autograd {
namespace {

void add_in_place(const at::Tensor& input, const at::Tensor& output) {
  write_without_derivative("test::add", input, output, [&] { output.add_(input); });
}

TEST(WriteWithoutDerivative, WritesAndMakesBackwardThrow) {
  const at::Tensor input = at::ones({2}).requires_grad_();
  const at::Tensor output = at::ones({2});
  add_in_place(input, output);
  EXPECT_EQ(output.sum().item<float>(), 4);
  ASSERT_TRUE(output.requires_grad());
  try {
    output.sum().backward();
    FAIL() << "backward did not throw";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("derivative for test::add is not implemented"));
  }
}

// What the output was before has a gradient of its own, which must not be had without the input's.
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

}  // namespace
}  // namespace narrowcast::autograd
