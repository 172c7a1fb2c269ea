#include <narrowcast/muon.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"
#include "trainer/ddp/optimization/fused_step.h"
#include "trainer/ddp/optimization/newton_schulz.h"

namespace narrowcast::optim {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::seeded_randn;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

MuonOptions in_float32(double lr = 0.1) { return MuonOptions(lr).ns_dtype(at::kFloat); }

at::Tensor made(uint64_t seed, at::IntArrayRef sizes) { return seeded_randn(seed, sizes).requires_grad_(); }

// Two matrices, a wide and a tall one, for Muon, and two other parameters for AdamW.
struct SmallModel {
  explicit SmallModel(const MuonOptions& options = in_float32()) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{6, 20}, {17, 4}, {9, 3}, {5}}) {
      parameters.push_back(made(parameters.size() + 1, sizes));
    }
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{parameters[0], parameters[1]}, std::make_unique<MuonOptions>(options));
    groups.emplace_back(std::vector<at::Tensor>{parameters[2], parameters[3]},
                        std::make_unique<AdamWOptions>(AdamWOptions(0.02).betas({0.8, 0.95}).weight_decay(0.1)));
    optimizer = std::make_unique<Muon>(groups);
  }
  void compute_gradients(uint64_t step, double scale = 1) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = seeded_randn(100 * step + i, parameters[i].sizes()).mul_(scale);
    }
  }
  std::vector<at::Tensor> parameters;
  std::unique_ptr<Muon> optimizer;
};

void expect_equal(const SmallModel& a, const SmallModel& b) {
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(a.parameters[i], b.parameters[i])) << "parameter " << i;
  }
}

// The five iterations move singular values of 1/50 of the norm or more to 0.65..1.25. bfloat16 has 8 bits.
TEST(NewtonSchulz, MakesSingularValuesNearlyOne) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{32, 100}, {100, 32}, {40, 20}, {1, 7}, {7, 1}}) {
      const at::Tensor u = seeded_randn(3, sizes);
      const at::Tensor orthogonal = orthogonalized(u, MuonOptions().ns_dtype(dtype));
      EXPECT_EQ(orthogonal.scalar_type(), dtype);
      ASSERT_EQ(orthogonal.sizes(), u.sizes());
      const at::Tensor values = at::linalg_svdvals(orthogonal.to(at::kDouble));
      EXPECT_GT(values.min().item<double>(), 0.65) << u.sizes() << " " << dtype;
      EXPECT_LT(values.max().item<double>(), 1.25) << u.sizes() << " " << dtype;
      // The singular vectors stay: U^T V is diagonal.
      const auto [left, singular, right] = at::linalg_svd(u.to(at::kDouble), /*full_matrices=*/false);
      const at::Tensor diagonal = at::matmul(at::matmul(left.t(), orthogonal.to(at::kDouble)), right.t());
      const at::Tensor rest = diagonal - at::diag(diagonal.diagonal());
      EXPECT_LT(rest.abs().max().item<double>(), dtype == at::kFloat ? 1e-4 : 0.1) << u.sizes();
    }
  }
}

// In float64 the same iterations differ from float32 by its rounding errors only.
TEST(NewtonSchulz, IsTheIterationInTheCommentOfMuon) {
  const at::Tensor u = seeded_randn(4, {12, 30});
  at::Tensor x = u.to(at::kDouble);
  x = x / x.norm();
  for (int step = 0; step < 5; ++step) {
    const at::Tensor a = at::matmul(x, x.t());
    x = 3.4445 * x + at::matmul(-4.7750 * a + 2.0315 * at::matmul(a, a), x);
  }
  const at::Tensor ours = orthogonalized(u, in_float32());
  EXPECT_LT((ours - x).abs().max().item<double>(), 1e-5);
  EXPECT_LT((orthogonalized(u.t(), in_float32()).t() - x).abs().max().item<double>(), 1e-5) << "transposed";
}

TEST(NewtonSchulz, HasTheCostOfItsProducts) {
  // X X^T, A A and the product with X: 2 * 10 * 10 * 30, 2 * 10^3 and 2 * 10 * 10 * 30.
  EXPECT_EQ(orthogonalization_cost({10, 30}, 1), 6000 + 2000 + 6000);
  EXPECT_EQ(orthogonalization_cost({30, 10}, 5), 5 * 14000);
}

TEST(NewtonSchulz, UsesTheDtypeThatTheDeviceMultipliesFast) {
  EXPECT_EQ(native_ns_dtype(at::kCUDA), at::kBFloat16);
  const at::ScalarType of_cpu = native_ns_dtype(at::kCPU);
  EXPECT_EQ(orthogonalized(seeded_randn(1, {4, 4}), MuonOptions()).scalar_type(), of_cpu);
}

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

TEST(Muon, GoesOnFromAnArchiveBitForBit) {
  SmallModel whole;
  whole.compute_gradients(1);
  whole.optimizer->step();
  std::stringstream file;
  torch::save(*whole.optimizer, file);
  SmallModel resumed(
      MuonOptions(7).weight_decay(3).momentum(0.1).nesterov(false).eps(1).ns_steps(9).ns_coefficients({1, 2, 3}));
  torch::load(*resumed.optimizer, file);
  const auto& options = static_cast<const MuonOptions&>(resumed.optimizer->param_groups()[0].options());
  EXPECT_EQ(options.ns_dtype(), at::kFloat);
  EXPECT_EQ(options.ns_steps(), 5);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) resumed.parameters[i].copy_(whole.parameters[i]);
  }
  for (SmallModel* const model : {&whole, &resumed}) {
    model->compute_gradients(2);
    model->optimizer->step();
  }
  expect_equal(whole, resumed);
}

TEST(Muon, RefusesAnArchiveOfOtherGroups) {
  SmallModel model;
  std::stringstream file;
  torch::save(*model.optimizer, file);
  Muon one_group({made(1, {3, 3})});
  EXPECT_THAT(error_message<c10::ValueError>([&] { torch::load(one_group, file); }),
              HasSubstr("2 groups were saved, but it has 1"));
  file.seekg(0);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{made(1, {3, 3})});
  groups.emplace_back(std::vector<at::Tensor>{made(2, {3, 3})});
  Muon matrices(groups);
  EXPECT_THAT(error_message<c10::ValueError>([&] { torch::load(matrices, file); }),
              HasSubstr("group 0 was saved with 2 parameters of Muon, but it has 1 of Muon"));
}

// Kernels take a state to be as large as its parameter.
TEST(Muon, RefusesAnArchiveOfOtherSizesAndChangesNothing) {
  const auto optimizer_of = [](int64_t rows, at::ScalarType dtype) {
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{made(1, {3, 3})});
    groups.emplace_back(std::vector<at::Tensor>{made(2, {rows, 4}).detach().to(dtype).requires_grad_()},
                        std::make_unique<torch::optim::AdamWOptions>(0.01));
    auto optimizer = std::make_unique<Muon>(groups);
    for (OptimizerParamGroup& group : optimizer->param_groups()) {
      for (at::Tensor& parameter : group.params()) parameter.mutable_grad() = at::ones_like(parameter);
    }
    optimizer->step();
    return optimizer;
  };
  const auto refusal = [&](int64_t rows, at::ScalarType dtype) {
    std::stringstream file;
    torch::save(*optimizer_of(rows, dtype), file);
    const auto other = optimizer_of(6, at::kFloat);
    const auto& matrix = other->param_groups()[0].params()[0];
    const auto momentum = [&] {
      return static_cast<MuonParamState&>(*other->state().at(matrix.unsafeGetTensorImpl())).momentum_buffer();
    };
    const at::Tensor before = momentum();
    const std::string message = error_message<c10::ValueError>([&] { torch::load(*other, file); });
    EXPECT_EQ(momentum().is_same(before), message != "nothing was thrown");
    return message;
  };
  EXPECT_EQ(refusal(6, at::kFloat), "nothing was thrown");
  EXPECT_THAT(refusal(5, at::kFloat), HasSubstr("saved state of parameter 0 of group 1 is Float[5, 4], but the"));
  EXPECT_THAT(refusal(6, at::kDouble), HasSubstr("is Double[6, 4], but the parameter is Float[6, 4]"));
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

TEST(Muon, KnowsTheFactorsOfTheLearningRateByName) {
  EXPECT_EQ(parse_adjust_lr("original"), AdjustLr::kOriginal);
  EXPECT_EQ(to_string(AdjustLr::kMatchRmsAdamW), "match_rms_adamw");
  EXPECT_THROW(parse_adjust_lr("adamw"), c10::ValueError);
  EXPECT_THROW(to_string(static_cast<AdjustLr>(7)), c10::ValueError);
}

TEST(Muon, LearningRatesAreSetAsInOtherOptimizers) {
  SmallModel model;
  for (auto& group : model.optimizer->param_groups()) group.options().set_lr(0.5);
  EXPECT_EQ(model.optimizer->param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(static_cast<const MuonOptions&>(model.optimizer->param_groups()[0].options()).lr(), 0.5);
}

}  // namespace
}  // namespace narrowcast::optim
