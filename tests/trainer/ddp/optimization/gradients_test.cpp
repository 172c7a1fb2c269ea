#include "trainer/ddp/optimization/gradients.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/devices.h"

namespace narrowcast {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A parameter with that gradient.
at::Tensor with_gradient(const at::Tensor& gradient) {
  at::Tensor parameter = at::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

at::Tensor without_gradient() { return at::zeros({2}).requires_grad_(); }

double norm_of(const std::vector<at::Tensor>& parameters) { return gradient_norm(parameters).item<double>(); }

TEST(GradientsAreFinite, FindsOneThatIsNot) {
  const at::Tensor a = with_gradient(at::full({1000}, std::numeric_limits<float>::max()));
  const at::Tensor b = with_gradient(at::zeros({0}));
  EXPECT_TRUE(gradients_are_finite({a, b, without_gradient()}));
  for (const float value : {kInfinity, -kInfinity, kNaN}) {
    a.mutable_grad()[777] = value;
    EXPECT_FALSE(gradients_are_finite({without_gradient(), b, a})) << value;
    a.mutable_grad()[777] = 0;
  }
}

TEST(GradientsAreFinite, OfNoneTheyAre) {
  EXPECT_TRUE(gradients_are_finite({}));
  EXPECT_TRUE(gradients_are_finite({without_gradient()}));
}

class GradientNormTest : public test::DeviceTest {
 protected:
  at::Tensor full(at::IntArrayRef sizes, double value, at::ScalarType dtype = at::kFloat) const {
    return with_gradient(at::full(sizes, value, at::TensorOptions(dtype).device(device())));
  }
};

// Squares and sums of few small integers are exact.
TEST_P(GradientNormTest, IsThatOfOneVector) { EXPECT_EQ(norm_of({full({9}, 1), full({2, 2}, 2), full({0}, 7)}), 5); }

TEST_P(GradientNormTest, TakesSeveralTypes) {
  EXPECT_EQ(norm_of({full({9}, 1, at::kBFloat16), full({3}, 2, at::kDouble), full({4}, 1, at::kHalf)}), 5);
}

TEST_P(GradientNormTest, IsZeroWithoutGradients) {
  EXPECT_EQ(norm_of({}), 0);
  EXPECT_EQ(norm_of({full({0}, 1), without_gradient()}), 0);
  EXPECT_EQ(gradient_norm({full({0}, 1)}).device().type(), GetParam());
}

// The squares exceed float32. The sum of n equal squares is rounded at most n times: n * 2^-53.
TEST_P(GradientNormTest, OfLargeFloatsIsFinite) {
  const int64_t n = 1000;
  for (const double value : {1e38, static_cast<double>(std::numeric_limits<float>::max())}) {
    const double expected = static_cast<double>(static_cast<float>(value)) * std::sqrt(2 * n);
    const std::vector<at::Tensor> parameters = {full({n}, value), full({n}, -value)};
    EXPECT_NEAR(norm_of(parameters), expected, expected * 2 * n * std::ldexp(1, -53));
    EXPECT_TRUE(are_finite_by_norm(norm_of(parameters), parameters));
  }
}

TEST_P(GradientNormTest, TellsThatAnElementIsNotFinite) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const float value : {kInfinity, -kInfinity, kNaN}) {
      const std::vector<at::Tensor> parameters = {full({10}, 1), full({1000}, 1, dtype)};
      parameters[1].mutable_grad()[777] = value;
      EXPECT_FALSE(are_finite_by_norm(norm_of(parameters), parameters)) << dtype << " " << value;
    }
  }
}

TEST_P(GradientNormTest, OfDoublesWhoseSquaresOverflowTheElementsDecide) {
  const std::vector<at::Tensor> parameters = {full({10}, 1e300, at::kDouble)};
  EXPECT_FALSE(std::isfinite(norm_of(parameters)));
  EXPECT_TRUE(are_finite_by_norm(norm_of(parameters), parameters));
}

// Norms of norms in float32 have a few rounding errors each.
TEST_P(GradientNormTest, ClipsAsLibTorchDoes) {
  for (const double max_norm : {0.5, 3.0, 1e9}) {
    std::vector<at::Tensor> ours;
    std::vector<at::Tensor> theirs;
    for (const int64_t size : {1, 7, 1000}) {
      const at::Tensor gradient = at::randn({size}).to(device());
      ours.push_back(with_gradient(gradient.clone()));
      theirs.push_back(with_gradient(gradient.clone()));
    }
    const double norm = norm_of(ours);
    clip_gradients(ours, norm, max_norm);
    EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(theirs, max_norm), norm, norm * 16 * std::ldexp(1, -24));
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(ours[i].grad().allclose(theirs[i].grad(), 16 * std::ldexp(1, -24), 0)) << max_norm << " " << i;
    }
  }
}

TEST_P(GradientNormTest, ClipsNothingThatIsShortEnough) {
  const at::Tensor parameter = full({4}, 0.125);
  clip_gradients({parameter, without_gradient()}, norm_of({parameter}), 1);
  EXPECT_TRUE(at::equal(parameter.grad().cpu(), at::full({4}, 0.125)));
}

// As in LibTorch: a NaN norm makes all gradients NaN, an infinite norm makes all finite ones 0.
TEST_P(GradientNormTest, ClipsWhatIsNotFiniteAsLibTorchDoes) {
  for (const float value : {kInfinity, kNaN}) {
    const std::vector<at::Tensor> ours = {full({3}, 1), full({1}, value)};
    const std::vector<at::Tensor> theirs = {full({3}, 1), full({1}, value)};
    clip_gradients(ours, norm_of(ours), 1);
    torch::nn::utils::clip_grad_norm_(theirs, 1);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(ours[i].grad().allclose(theirs[i].grad(), 0, 0, /*equal_nan=*/true)) << value << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GradientNormTest, test::kDevices, test::name_of_case);

// tests/ops/optimizer has the tests of the kernels.
TEST(GradientNormOnTheCpu, DoesNotDependOnHowElementsAreDivided) {
  const at::Tensor gradient = at::randn({100, 1000});
  const double expected = norm_of({with_gradient(gradient)});
  std::vector<at::Tensor> rows;
  for (const at::Tensor& row : gradient.unbind()) {
    rows.insert(rows.begin(), with_gradient(row.clone()));
  }
  EXPECT_EQ(norm_of(rows), expected);
  EXPECT_EQ(norm_of({with_gradient(gradient.t())}), expected);
  EXPECT_EQ(norm_of({with_gradient(gradient.t().contiguous())}), expected);
}

// A gradient whose elements have gaps between them, and one whose elements share memory.
TEST(GradientNormOnTheCpu, TakesElementsOfEveryOrder) {
  const at::Tensor parameter = at::zeros({4}).requires_grad_();
  parameter.mutable_grad() = at::full({4, 3}, 2.0).select(1, 1);
  const at::Tensor expanded = at::zeros({9}).requires_grad_();
  expanded.mutable_grad() = at::ones({1}).expand({9});
  EXPECT_EQ(norm_of({parameter, expanded}), 5);
  EXPECT_TRUE(gradients_are_finite({parameter, expanded}));
}

TEST(ClipFactor, IsOneForShortGradients) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_factor(kInfinity, 1), 0);
  EXPECT_TRUE(std::isnan(clip_factor(kNaN, 1)));
  EXPECT_THROW(clip_factor(1, 0), c10::ValueError);
}

TEST(ClipGradients, RefusesANormThatIsNotPositive) {
  EXPECT_THROW(clip_gradients({}, 1, 0), c10::ValueError);
  EXPECT_THROW(clip_gradients({}, 1, kNaN), c10::ValueError);
}

std::vector<at::Tensor> ten_ones(double value) {
  return {with_gradient(at::full({2, 3}, value)), with_gradient(at::full({4}, value))};
}

TEST(ClipGradientNorm, ScalesAllGradientsToTheNorm) {
  const std::vector<at::Tensor> parameters = ten_ones(1);  // Ten elements: norm sqrt(10).
  const double norm = clip_gradient_norm(parameters, 0.5);
  EXPECT_NEAR(norm, std::sqrt(10), std::ldexp(1, -52) * std::sqrt(10));  // The sum is exact.
  EXPECT_NEAR(norm_of(parameters), 0.5, 0.5 * 2e-6);  // LibTorch adds 1e-6 to the norm it divides by.
}

TEST(ClipGradientNorm, LeavesSmallGradientsAlone) {
  const std::vector<at::Tensor> parameters = ten_ones(0.125);
  clip_gradient_norm(parameters, 1);
  EXPECT_TRUE(at::equal(parameters[1].grad(), at::full({4}, 0.125)));
}

TEST(ClipGradientNorm, SkipsParametersWithoutGradient) {
  const at::Tensor without = without_gradient();
  EXPECT_DOUBLE_EQ(clip_gradient_norm({without, with_gradient(at::ones({4}))}, 1), 2);
  EXPECT_FALSE(without.grad().defined());
}

TEST(ClipGradientNorm, RefusesANormThatIsNotPositive) { EXPECT_THROW(clip_gradient_norm({}, 0), c10::ValueError); }

}  // namespace
}  // namespace narrowcast
