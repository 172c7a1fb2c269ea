#include "trainer/train/training/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace narrowcast::training {
namespace {

// One matrix and one vector, all ones.
struct TwoParameters : torch::nn::Module {
  TwoParameters() {
    matrix = register_parameter("matrix", at::ones({2, 3}));
    vector = register_parameter("vector", at::ones({4}));
  }
  void set_gradients(double value) {
    matrix.mutable_grad() = at::full({2, 3}, value);
    vector.mutable_grad() = at::full({4}, value);
  }
  at::Tensor matrix;
  at::Tensor vector;
};

TEST(Optimizer, SgdFollowsTheGradient) {
  TwoParameters module;
  module.set_gradients(2);
  const auto optimizer = make_optimizer(module, {.kind = OptimizerKind::kSgd, .weight_decay = 0});
  set_learning_rate(*optimizer, 0.25);
  optimizer->step();
  EXPECT_TRUE(at::equal(module.matrix, at::full({2, 3}, 0.5)));
  EXPECT_TRUE(at::equal(module.vector, at::full({4}, 0.5)));
}

TEST(Optimizer, SgdKeepsMomentum) {
  TwoParameters module;
  const auto optimizer = make_optimizer(module, {.kind = OptimizerKind::kSgd, .weight_decay = 0, .momentum = 0.5});
  set_learning_rate(*optimizer, 0.25);
  module.set_gradients(1);
  optimizer->step();
  optimizer->step();
  // 1 - 0.25 * 1 - 0.25 * (0.5 * 1 + 1), each step exact in binary.
  EXPECT_TRUE(at::equal(module.vector, at::full({4}, 0.375)));
}

TEST(Optimizer, OnlyParametersWithTwoDimensionsDecay) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    TwoParameters module;
    module.set_gradients(0);
    const auto optimizer = make_optimizer(module, {.kind = kind, .weight_decay = 0.5});
    set_learning_rate(*optimizer, 0.5);
    optimizer->step();
    EXPECT_TRUE(at::equal(module.matrix, at::full({2, 3}, 0.75)));
    EXPECT_TRUE(at::equal(module.vector, at::ones({4})));
  }
}

TEST(Optimizer, AdamWStepsByTheLearningRateAtFirst) {
  TwoParameters module;
  module.set_gradients(7);
  const auto optimizer = make_optimizer(module, {.weight_decay = 0});
  set_learning_rate(*optimizer, 0.125);
  optimizer->step();
  // The first step is lr * g / (|g| + eps) = lr * (1 - eps / 7) up to some float32 roundings of values near one.
  EXPECT_NEAR(module.vector[0].item<double>(), 0.875, 0.125 * 1e-8 / 7 + 8 * std::ldexp(1, -24));
}

TEST(Optimizer, DoesNotMoveBeforeALearningRateIsSet) {
  TwoParameters module;
  module.set_gradients(1);
  make_optimizer(module, {})->step();
  EXPECT_TRUE(at::equal(module.matrix, at::ones({2, 3})));
}

TEST(Optimizer, RefusesValuesOutOfRange) {
  const TwoParameters module;
  EXPECT_THROW(make_optimizer(module, {.weight_decay = -1}), c10::ValueError);
  EXPECT_THROW(make_optimizer(module, {.weight_decay = std::nan("")}), c10::ValueError);
  EXPECT_THROW(make_optimizer(module, {.kind = OptimizerKind::kSgd, .momentum = 1}), c10::ValueError);
  EXPECT_THROW(make_optimizer(module, {.beta1 = 1}), c10::ValueError);
  EXPECT_THROW(make_optimizer(module, {.beta2 = -0.5}), c10::ValueError);
  EXPECT_THROW(make_optimizer(module, {.epsilon = 0}), c10::ValueError);
}

TEST(Optimizer, RefusesMomentumThatAdamWWouldIgnore) {
  EXPECT_THROW(make_optimizer(TwoParameters(), {.momentum = 0.9}), c10::ValueError);
}

TEST(Optimizer, IsKnownByName) {
  EXPECT_EQ(parse_optimizer("adamw"), OptimizerKind::kAdamW);
  EXPECT_EQ(parse_optimizer("sgd"), OptimizerKind::kSgd);
  EXPECT_THROW(parse_optimizer("adam"), c10::ValueError);
}

TEST(GradientsAreFinite, FindsOneThatIsNot) {
  const at::Tensor a = at::zeros({1000}, at::kFloat).requires_grad_();
  const at::Tensor b = at::zeros({0}, at::kFloat).requires_grad_();
  const at::Tensor without = at::zeros({2}, at::kFloat).requires_grad_();
  a.mutable_grad() = at::full({1000}, std::numeric_limits<float>::max());
  b.mutable_grad() = at::zeros({0});
  EXPECT_TRUE(gradients_are_finite({a, b, without}));
  for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    a.mutable_grad()[777] = value;
    EXPECT_FALSE(gradients_are_finite({without, b, a})) << value;
    a.mutable_grad()[777] = 0;
  }
}

TEST(ClipGradientNorm, ScalesAllGradientsToTheNorm) {
  TwoParameters module;
  module.set_gradients(1);  // Ten elements: norm sqrt(10).
  const double norm = clip_gradient_norm(module.parameters(), 0.5);
  // Norms of norms in float32: a few roundings.
  EXPECT_NEAR(norm, std::sqrt(10), 4 * std::ldexp(1, -23) * std::sqrt(10));
  const double squares =
      module.matrix.grad().square().sum().item<double>() + module.vector.grad().square().sum().item<double>();
  EXPECT_NEAR(std::sqrt(squares), 0.5, 0.5 * 2e-6);  // LibTorch adds 1e-6 to the norm it divides by.
}

TEST(ClipGradientNorm, LeavesSmallGradientsAlone) {
  TwoParameters module;
  module.set_gradients(0.125);
  clip_gradient_norm(module.parameters(), 1);
  EXPECT_TRUE(at::equal(module.vector.grad(), at::full({4}, 0.125)));
}

TEST(ClipGradientNorm, SkipsParametersWithoutGradient) {
  TwoParameters module;
  module.vector.mutable_grad() = at::full({4}, 1.0);
  EXPECT_DOUBLE_EQ(clip_gradient_norm(module.parameters(), 1), 2);
  EXPECT_FALSE(module.matrix.grad().defined());
}

TEST(ClipGradientNorm, RefusesANormThatIsNotPositive) { EXPECT_THROW(clip_gradient_norm({}, 0), c10::ValueError); }

}  // namespace
}  // namespace narrowcast::training
