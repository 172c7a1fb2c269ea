#include <narrowcast/muon.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"
#include "tests/trainer/ddp/optimization/small_muon_model.h"
#include "trainer/ddp/optimization/fused_step.h"
#include "trainer/ddp/optimization/newton_schulz.h"

namespace narrowcast::optim {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::seeded_randn;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

// Two steps by the formulas in the comment of Muon, with the factors of both kinds.
TEST(Muon, TakesTheStepsOfItsFormulas) {
  for (const bool nesterov : {true, false}) {
    for (const AdjustLr adjust : {AdjustLr::kOriginal, AdjustLr::kMatchRmsAdamW}) {
      const MuonOptions options =
          in_float32(0.25).momentum(0.75).weight_decay(0.5).nesterov(nesterov).adjust_lr_fn(adjust);
      SmallModel model(options);
      for (size_t i = 0; i < 2; ++i) {
        const at::Tensor& parameter = model.parameters[i];
        at::Tensor x = parameter.detach().to(at::kDouble);
        at::Tensor b = at::zeros_like(x);
        SmallModel trained(options);
        for (uint64_t step = 1; step <= 2; ++step) {
          trained.compute_gradients(step);
          trained.optimizer->step();
          const at::Tensor g = seeded_randn(100 * step + i, parameter.sizes()).to(at::kDouble);
          b = 0.75 * b + 0.25 * g;
          const at::Tensor u = nesterov ? 0.75 * b + 0.25 * g : b;
          const double rows = parameter.size(0);
          const double columns = parameter.size(1);
          const double factor = adjust == AdjustLr::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                                              : 0.2 * std::sqrt(std::max(rows, columns));
          x = x * (1 - 0.25 * 0.5) - 0.25 * factor * orthogonalized(u.to(at::kFloat), options).to(at::kDouble);
        }
        EXPECT_LT((trained.parameters[i] - x).abs().max().item<double>(), 1e-4) << "parameter " << i;
      }
    }
  }
}

TEST(Muon, StepsTheOtherParametersAsAdamW) {
  SmallModel model;
  SmallModel other;
  Fused<torch::optim::AdamW> adamw({other.parameters[2], other.parameters[3]},
                                   AdamWOptions(0.02).betas({0.8, 0.95}).weight_decay(0.1));
  for (uint64_t step = 1; step <= 3; ++step) {
    model.compute_gradients(step);
    other.compute_gradients(step);
    // Gradients may lie in another order in memory than their parameters.
    model.parameters[2].mutable_grad() = model.parameters[2].grad().t().contiguous().t();
    model.optimizer->step();
    adamw.step();
  }
  EXPECT_TRUE(at::equal(model.parameters[2], other.parameters[2]));
  EXPECT_TRUE(at::equal(model.parameters[3], other.parameters[3]));
}

// The sizes of the steps' gradients differ: if all were scaled alike, the orthogonalised updates would not change.
TEST(Muon, ScalesGradientsInItsStep) {
  SmallModel before;
  SmallModel in_step;
  for (uint64_t step = 1; step <= 2; ++step) {
    const double scale = 1.0 / static_cast<double>(step);
    before.compute_gradients(step, scale);
    in_step.compute_gradients(step);
    before.optimizer->step();
    in_step.optimizer->step_scaled(scale);
    EXPECT_TRUE(at::equal(in_step.parameters[0].grad(), seeded_randn(100 * step, {6, 20})));
  }
  expect_equal(before, in_step);
}

TEST(Muon, LeavesParametersWithoutGradientsAsTheyAre) {
  SmallModel model;
  const SmallModel untouched;
  model.optimizer->step();
  expect_equal(model, untouched);
  EXPECT_TRUE(model.optimizer->state().empty());
  model.compute_gradients(1);
  model.parameters[1].mutable_grad() = at::Tensor();
  model.optimizer->step();
  EXPECT_FALSE(at::equal(model.parameters[0], untouched.parameters[0]));
  EXPECT_TRUE(at::equal(model.parameters[1], untouched.parameters[1]));
  EXPECT_EQ(model.optimizer->state().size(), 3);
}

TEST(Muon, StepsMatricesWithoutElementsAndOfOtherKinds) {
  const at::Tensor empty = at::zeros({0, 3}).requires_grad_();
  const at::Tensor wide = made(1, {3, 8}).detach().t().requires_grad_();  // Not contiguous.
  const at::Tensor half = made(2, {4, 4}).detach().to(at::kBFloat16).requires_grad_();
  const at::Tensor zero = made(3, {4, 5});
  for (const at::Tensor& parameter : {empty, wide, half}) parameter.mutable_grad() = at::ones_like(parameter);
  zero.mutable_grad() = at::zeros_like(zero);
  Muon optimizer({empty, wide, half, zero}, in_float32().weight_decay(0));
  const at::Tensor before = zero.detach().clone();
  optimizer.step();
  EXPECT_TRUE(at::equal(zero, before)) << "a gradient of zeros";
  EXPECT_TRUE(wide.isfinite().all().item<bool>());
  EXPECT_FALSE(at::equal(wide, made(1, {3, 8}).t()));
  EXPECT_TRUE(half.isfinite().all().item<bool>());
}

TEST(Muon, ReturnsTheLossOfAClosure) {
  SmallModel model;
  const at::Tensor loss = model.optimizer->step([&] {
    const at::Tensor value = model.parameters[0].square().sum();
    value.backward();
    return value;
  });
  EXPECT_TRUE(loss.requires_grad());
  EXPECT_EQ(model.optimizer->state().size(), 1);
  EXPECT_FALSE(model.optimizer->step().defined());
}

TEST(Muon, RefusesWhatItCannotStep) {
  const auto refusal = [](const std::function<void(MuonOptions&)>& change) {
    MuonOptions options;
    change(options);
    return error_message<c10::ValueError>([&] { Muon({made(1, {3, 3})}, options); });
  };
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal([](auto& o) { o.lr(-1); }), HasSubstr("lr: must be at least 0 in group 0 of Muon, but is -1"));
  EXPECT_THAT(refusal([](auto& o) { o.lr(kNan); }), HasSubstr("lr: must be at least 0"));
  EXPECT_THAT(refusal([](auto& o) { o.weight_decay(-1); }), HasSubstr("weight_decay: must be at least 0"));
  EXPECT_THAT(refusal([](auto& o) { o.momentum(1.5); }), HasSubstr("momentum: must be in 0..1"));
  EXPECT_THAT(refusal([](auto& o) { o.eps(0); }), HasSubstr("eps: must be positive"));
  EXPECT_THAT(refusal([](auto& o) { o.ns_steps(0); }), HasSubstr("ns_steps: must be in 1..99"));
  EXPECT_THAT(refusal([](auto& o) { o.ns_steps(100); }), HasSubstr("ns_steps: must be in 1..99"));
  EXPECT_THAT(refusal([](auto& o) { o.ns_dtype(at::kHalf); }), HasSubstr("ns_dtype: must be BFloat16 or Float"));
  EXPECT_THAT(error_message<c10::ValueError>([] { Muon({at::zeros({3})}); }),
              HasSubstr("a parameter in group 0 of Muon is Float [3], but must be a matrix"));
  EXPECT_THAT(error_message<c10::ValueError>([] { Muon({at::zeros({3, 3}, at::kLong)}); }), HasSubstr("is Long"));
  const auto group_refusal = [](std::unique_ptr<torch::optim::OptimizerOptions> options) {
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{made(1, {3, 3})}, std::move(options));
    return error_message<c10::ValueError>([&] { Muon{groups}; });
  };
  EXPECT_THAT(group_refusal(std::make_unique<torch::optim::SGDOptions>(0.1)),
              HasSubstr("group 0 of Muon: its options must be MuonOptions or AdamWOptions"));
  EXPECT_THAT(group_refusal(std::make_unique<AdamWOptions>(AdamWOptions().amsgrad(true))), HasSubstr("amsgrad"));
  EXPECT_THAT(group_refusal(std::make_unique<AdamWOptions>(AdamWOptions().betas({0.9, 1}))), HasSubstr("betas"));
}

// LibTorch 2.15 replaces the options of other classes than its own by the defaults.
TEST(Muon, GroupsKeepTheirOptions) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{made(1, {3, 3})}, std::make_unique<MuonOptions>(0.3));
  groups.emplace_back(std::vector<at::Tensor>{made(2, {3})}, std::make_unique<AdamWOptions>(0.2));
  groups.emplace_back(std::vector<at::Tensor>{made(3, {3, 3})});
  Muon optimizer(groups, MuonOptions(0.1));
  optimizer.add_param_group({{made(4, {3})}, std::make_unique<AdamWOptions>(0.4)});
  const std::vector<OptimizerParamGroup>& kept = optimizer.param_groups();
  ASSERT_EQ(kept.size(), 4);
  EXPECT_EQ(dynamic_cast<const MuonOptions&>(kept[0].options()).lr(), 0.3);
  EXPECT_EQ(dynamic_cast<const AdamWOptions&>(kept[1].options()).lr(), 0.2);
  EXPECT_EQ(dynamic_cast<const MuonOptions&>(kept[2].options()).lr(), 0.1);
  EXPECT_EQ(dynamic_cast<const AdamWOptions&>(kept[3].options()).lr(), 0.4);
}

// Options, groups and gradients may change between steps.
TEST(Muon, ChecksItsGroupsInEachStep) {
  SmallModel model;
  const SmallModel untouched;
  model.compute_gradients(1);
  model.optimizer->add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{made(9, {3})}));
  EXPECT_THAT(error_message<c10::ValueError>([&] { model.optimizer->step(); }), HasSubstr("in group 2"));
  expect_equal(model, untouched);
  SmallModel sparse;
  sparse.parameters[0].mutable_grad() = at::ones({6, 20}).to_sparse();
  EXPECT_THAT(error_message<c10::ValueError>([&] { sparse.optimizer->step(); }), HasSubstr("has the layout Sparse"));
}

TEST(Muon, LearningRatesAreSetAsInOtherOptimizers) {
  SmallModel model;
  for (auto& group : model.optimizer->param_groups()) group.options().set_lr(0.5);
  EXPECT_EQ(model.optimizer->param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(static_cast<const MuonOptions&>(model.optimizer->param_groups()[0].options()).lr(), 0.5);
}

}  // namespace
}  // namespace narrowcast::optim
