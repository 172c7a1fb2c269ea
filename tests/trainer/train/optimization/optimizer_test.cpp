#include "trainer/train/optimization/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include <narrowcast/char_gpt.h>
#include <narrowcast/errors.h>
#include <narrowcast/learning_rate.h>
#include <narrowcast/muon.h>
#include "tests/support/error_message.h"

namespace narrowcast::training {
namespace {

using checkpoint::TensorMap;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST(Optimizer, LeavesAloneWhatRequiresNoGradient) {
  TwoParameters module;
  module.set_gradients(2);
  module.matrix.set_requires_grad(false);
  EXPECT_EQ(trained_parameters(module).size(), 1U);
  const auto optimizer = make_optimizer(module, {.kind = OptimizerKind::kAdamW});
  set_learning_rate(*optimizer, 0.25);
  optimizer->step();
  EXPECT_TRUE(at::equal(module.matrix, at::ones({2, 3})));
  EXPECT_FALSE(at::equal(module.vector, at::ones({4})));
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

// Muon's momentum takes the scaled gradients.
TEST(Optimizer, MuonScalesTheGradientsOfOneStep) {
  TwoParameters scaled;
  TwoParameters in_step;
  const OptimizerOptions options{.kind = OptimizerKind::kMuon, .momentum = 0.9};
  const auto before = make_optimizer(scaled, options);
  const auto optimizer = make_optimizer(in_step, options);
  for (const double scale : {0.5, 1.0}) {
    scaled.set_gradients(2 * scale);
    in_step.set_gradients(2);
    for (torch::optim::Optimizer* const each : {before.get(), optimizer.get()}) set_learning_rates(*each, 0.25, 0.125);
    scale_next_step(*optimizer, scale);
    before->step();
    optimizer->step();
  }
  EXPECT_TRUE(at::equal(scaled.matrix, in_step.matrix));
  EXPECT_TRUE(at::equal(scaled.vector, in_step.vector));
  EXPECT_FALSE(at::equal(scaled.matrix, at::ones({2, 3})));
}

TEST(Optimizer, ScalesTheGradientsOfOneStep) {
  TwoParameters module;
  module.set_gradients(1);
  const auto optimizer = make_optimizer(module, {.kind = OptimizerKind::kSgd, .weight_decay = 0});
  set_learning_rate(*optimizer, 0.25);
  scale_next_step(*optimizer, 0.5);
  optimizer->step();
  EXPECT_TRUE(at::equal(module.matrix, at::full({2, 3}, 0.875)));
  optimizer->step();
  EXPECT_TRUE(at::equal(module.matrix, at::full({2, 3}, 0.625)));
}

TEST(Optimizer, OfAnotherMakerCannotScaleGradients) {
  TwoParameters module;
  torch::optim::SGD optimizer(module.parameters(), 0.1);
  EXPECT_THAT(error_message<c10::ValueError>([&] { scale_next_step(optimizer, 0.5); }),
              HasSubstr("only those of make_optimizer"));
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
  // The first step is lr * g / (|g| + eps) = lr * (1 - eps / 7), up to a few float32 rounding errors of values near
  // one.
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
  EXPECT_EQ(to_string(OptimizerKind::kAdamW), "adamw");
  EXPECT_EQ(to_string(OptimizerKind::kSgd), "sgd");
  EXPECT_EQ(to_string(parse_optimizer("muon")), "muon");
  EXPECT_EQ(error_message<c10::ValueError>([] { parse_optimizer("adam"); }),
            "optimizer: unknown name 'adam'; known: adamw, sgd, muon");
  EXPECT_THROW(to_string(static_cast<OptimizerKind>(3)), c10::ValueError);
}

struct TrainedLayer {
  explicit TrainedLayer(OptimizerKind kind)
      : optimizer(make_optimizer(*layer, {.kind = kind, .momentum = usual_momentum(kind)})) {
    set_learning_rate(*optimizer, 0.1);
  }
  void step() {
    optimizer->zero_grad();
    layer->forward(at::ones({2, 3})).square().sum().backward();
    optimizer->step();
  }
  torch::nn::Linear layer{3, 2};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

class OptimizerStateTest : public ::testing::TestWithParam<OptimizerKind> {};

TEST_P(OptimizerStateTest, ResumesWithTheSameBits) {
  TrainedLayer whole(GetParam());
  EXPECT_THAT(optimizer_state(*whole.optimizer, *whole.layer), IsEmpty());
  whole.step();
  TrainedLayer resumed(GetParam());
  {
    const at::NoGradGuard no_grad;
    resumed.layer->weight.copy_(whole.layer->weight);
    resumed.layer->bias.copy_(whole.layer->bias);
  }
  const TensorMap state = optimizer_state(*whole.optimizer, *whole.layer);
  EXPECT_EQ(state.size(), GetParam() == OptimizerKind::kAdamW ? 6U : GetParam() == OptimizerKind::kSgd ? 2U : 4U);
  load_optimizer_state(*resumed.optimizer, *resumed.layer, state);
  whole.step();
  resumed.step();
  EXPECT_TRUE(at::equal(whole.layer->weight, resumed.layer->weight));
  EXPECT_TRUE(at::equal(whole.layer->bias, resumed.layer->bias));
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerStateTest,
                         ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kSgd, OptimizerKind::kMuon));

// Embeddings, biases and norms are AdamW's, also the embedding that is the output layer as well.
TEST(Optimizer, MuonStepsTheMatricesOfHiddenLayers) {
  const models::CharGpt gpt({.layers = 1, .heads = 2, .width = 8, .context = 4, .vocabulary_size = 10});
  std::vector<at::Tensor> matrices = muon_matrices(gpt, {});
  ASSERT_EQ(matrices.size(), 4U);
  EXPECT_EQ(matrices[0].sizes(), at::IntArrayRef({24, 8}));
  const auto optimizer = make_optimizer(gpt, {.kind = OptimizerKind::kMuon, .weight_decay = 0.5, .momentum = 0.75});
  ASSERT_EQ(optimizer->param_groups().size(), 3U);
  const auto& of_matrices = static_cast<const optim::MuonOptions&>(optimizer->param_groups()[0].options());
  EXPECT_EQ(optimizer->param_groups()[0].params().size(), 4U);
  EXPECT_EQ(of_matrices.weight_decay(), 0.5);
  EXPECT_EQ(of_matrices.momentum(), 0.75);
  EXPECT_EQ(of_matrices.adjust_lr_fn(), optim::AdjustLr::kMatchRmsAdamW);
  EXPECT_EQ(optimizer->param_groups()[1].params().size(), 2U) << "embeddings decay";
  using torch::optim::AdamWOptions;
  EXPECT_EQ(static_cast<const AdamWOptions&>(optimizer->param_groups()[1].options()).weight_decay(), 0.5);
  EXPECT_EQ(static_cast<const AdamWOptions&>(optimizer->param_groups()[2].options()).weight_decay(), 0);
  set_learning_rates(*optimizer, 0.5, 0.25);
  EXPECT_EQ(of_matrices.lr(), 0.5);
  for (size_t i = 1; i < 3; ++i) EXPECT_EQ(optimizer->param_groups()[i].options().get_lr(), 0.25);
}

TEST(Optimizer, MuonLeavesNamedMatricesToAdamW) {
  const models::CharGpt gpt({.layers = 2, .heads = 2, .width = 8, .context = 4, .vocabulary_size = 10});
  EXPECT_EQ(muon_matrices(gpt, {"blocks.0.mlp_input", "blocks.0.mlp_output.weight"}).size(), 6U);
  EXPECT_EQ(muon_matrices(gpt, {"blocks.1"}).size(), 4U);
  for (const char* const name : {"block", "blocks.0.mlp_", "blocks.0.mlp_norm", "token_embedding"}) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { muon_matrices(gpt, {name}); }),
              std::string("adamw_parameters: '") + name + "' names no matrix that muon would step");
  }
  EXPECT_EQ(error_message<c10::ValueError>([&] { muon_matrices(gpt, {"blocks"}); }),
            "optimizer: the model has no matrix that muon would step; use adamw");
  EXPECT_THROW(make_optimizer(gpt, {.adamw_parameters = {"blocks.1"}}), c10::ValueError) << "no effect with AdamW";
}

TEST(OptimizerState, NamesWhatDoesNotFit) {
  TrainedLayer setup(OptimizerKind::kAdamW);
  setup.step();
  const TensorMap whole = optimizer_state(*setup.optimizer, *setup.layer);
  const auto complaint = [&](const std::function<void(TensorMap&)>& change) {
    TensorMap state = whole;
    change(state);
    TrainedLayer fresh(OptimizerKind::kAdamW);
    return error_message<CorruptInputError>([&] { load_optimizer_state(*fresh.optimizer, *fresh.layer, state); });
  };
  EXPECT_EQ(complaint([](TensorMap& s) { s.erase("weight.exp_avg"); }), "the optimizer's 'weight.exp_avg' is missing");
  EXPECT_THAT(complaint([](TensorMap& s) {
                s["weight.exp_avg"] = at::zeros({3, 2});
              }),
              HasSubstr("the optimizer's 'weight.exp_avg' is Float [3, 2], but the parameter is Float [2, 3]"));
  EXPECT_THAT(complaint([](TensorMap& s) { s["other.step"] = at::zeros({1}); }),
              HasSubstr("the optimizer's 'other.step' is unknown"));
  EXPECT_THAT(complaint([](TensorMap& s) { s["bias.step"] = at::zeros({1}); }),
              HasSubstr("'bias.step' is not an integer"));
}

TEST(OptimizerState, IsOfOneKind) {
  TrainedLayer adamw(OptimizerKind::kAdamW);
  TrainedLayer sgd(OptimizerKind::kSgd);
  adamw.step();
  sgd.step();
  EXPECT_THAT(error_message<CorruptInputError>([&] {
                load_optimizer_state(*sgd.optimizer, *sgd.layer, optimizer_state(*adamw.optimizer, *adamw.layer));
              }),
              HasSubstr("the optimizer's 'bias.exp_avg' is unknown"));
  EXPECT_THAT(error_message<CorruptInputError>([&] {
                load_optimizer_state(*adamw.optimizer, *adamw.layer, optimizer_state(*sgd.optimizer, *sgd.layer));
              }),
              HasSubstr("the optimizer's 'bias.momentum_buffer' is unknown"));
}

TEST(OptimizerState, KnowsTheTrainersOptimizersOnly) {
  torch::nn::Linear layer(3, 2);
  torch::optim::Adagrad optimizer(layer->parameters());
  layer->forward(at::ones({2, 3})).sum().backward();
  optimizer.step();
  EXPECT_THAT(error_message<c10::ValueError>([&] { optimizer_state(optimizer, *layer); }), HasSubstr("AdamW"));
}

}  // namespace
}  // namespace narrowcast::training
