#include "trainer/train/training/optimizer_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "trainer/train/training/optimizer.h"

namespace narrowcast::training {
namespace {

using checkpoint::TensorMap;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct TrainedLayer {
  explicit TrainedLayer(OptimizerKind kind)
      : optimizer(make_optimizer(*layer, {.kind = kind, .momentum = kind == OptimizerKind::kSgd ? 0.9 : 0})) {
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

TEST_P(OptimizerStateTest, GoesOnWithTheSameBits) {
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
  EXPECT_EQ(state.size(), GetParam() == OptimizerKind::kAdamW ? 6U : 2U);
  load_optimizer_state(*resumed.optimizer, *resumed.layer, state);
  whole.step();
  resumed.step();
  EXPECT_TRUE(at::equal(whole.layer->weight, resumed.layer->weight));
  EXPECT_TRUE(at::equal(whole.layer->bias, resumed.layer->bias));
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerStateTest, ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kSgd));

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
  EXPECT_THAT(complaint([](TensorMap& s) { s["other.step"] = at::zeros({1}); }), HasSubstr("no use for 'other.step'"));
  EXPECT_THAT(complaint([](TensorMap& s) { s["bias.step"] = at::zeros({1}); }), HasSubstr("'bias.step' is no integer"));
}

TEST(OptimizerState, IsOfOneKind) {
  TrainedLayer adamw(OptimizerKind::kAdamW);
  TrainedLayer sgd(OptimizerKind::kSgd);
  adamw.step();
  sgd.step();
  EXPECT_THAT(error_message<CorruptInputError>([&] {
                load_optimizer_state(*sgd.optimizer, *sgd.layer, optimizer_state(*adamw.optimizer, *adamw.layer));
              }),
              HasSubstr("no use for 'bias.exp_avg'"));
  EXPECT_THAT(error_message<CorruptInputError>([&] {
                load_optimizer_state(*adamw.optimizer, *adamw.layer, optimizer_state(*sgd.optimizer, *sgd.layer));
              }),
              HasSubstr("no use for 'bias.momentum_buffer'"));
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
