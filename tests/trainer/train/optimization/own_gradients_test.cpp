#include "trainer/train/optimization/own_gradients.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace narrowcast::training {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

// A parameter whose gradient is the factor in backward().
at::Tensor thousand() { return at::zeros({1000}).requires_grad_(); }

void backward(const at::Tensor& parameter, const at::Tensor& gradient) { (parameter * gradient).sum().backward(); }

at::Tensor ones_but(int64_t at, float value) {
  at::Tensor gradient = at::ones({1000});
  gradient[at] = value;
  return gradient;
}

TEST(OwnGradients, OneElementCounts) {
  const at::Tensor first = thousand();
  const at::Tensor second = thousand();
  OwnGradients own({first, second});
  for (const float value : {kInfinite, -kInfinite, std::numeric_limits<float>::quiet_NaN()}) {
    own.begin_step();
    backward(first, ones_but(999, value));
    backward(second, at::ones({1000}));
    EXPECT_FALSE(own.were_finite()) << value;
    first.mutable_grad().reset();
    own.begin_step();
    EXPECT_TRUE(own.were_finite()) << "of the step before";
    backward(first, at::ones({1000}));
    EXPECT_TRUE(own.were_finite());
  }
}

TEST(OwnGradients, InfinitiesThatWouldCancelCount) {
  const at::Tensor only = thousand();
  OwnGradients own({only});
  at::Tensor gradient = ones_but(0, kInfinite);
  gradient[1] = -kInfinite;
  backward(only, gradient);
  EXPECT_FALSE(own.were_finite());
}

TEST(OwnGradients, AreFiniteThoughTheirSumIsNot) {
  const at::Tensor only = thousand();
  OwnGradients own({only});
  backward(only, at::full({1000}, std::numeric_limits<float>::max()));
  EXPECT_TRUE(own.were_finite());
}

// Micro-steps before the last one run such passes.
TEST(OwnGradients, EveryPassOfAStepCounts) {
  const at::Tensor only = thousand();
  OwnGradients own({only});
  own.begin_step();
  backward(only, ones_but(5, kInfinite));
  only.mutable_grad().reset();
  backward(only, at::ones({1000}));
  EXPECT_FALSE(own.were_finite());
}

TEST(OwnGradients, ThoseOfAnEmptyParameterAreFinite) {
  const at::Tensor empty = at::zeros({0}).requires_grad_();
  OwnGradients own({empty});
  backward(empty, at::ones({0}));
  EXPECT_TRUE(own.were_finite());
}

}  // namespace
}  // namespace narrowcast::training
