#include "trainer/ddp/optimization/fused_step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "ops/cpu/optimizer/optimizer_step.h"
#include "tests/support/devices.h"

namespace narrowcast::optim {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

constexpr int64_t kFusedSteps = 100;
constexpr double kRate = 0.01;

// Two copies of parameters of several shapes, including an empty one and one with a gradient only in every third step.
struct TwoCopies {
  TwoCopies(at::Device device, at::ScalarType dtype) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{3, 5}, std::vector<int64_t>{1000}, std::vector<int64_t>{0}, std::vector<int64_t>{4}}) {
      const at::Tensor values = at::randn(sizes).to(device, dtype);
      plain.push_back(values.clone().requires_grad_());
      fused.push_back(values.clone().requires_grad_());
    }
  }

  void set_gradients(int64_t step) {
    for (size_t i = 0; i < plain.size(); ++i) {
      const bool has_none = i + 1 == plain.size() && step % 3 != 1;
      const at::Tensor gradient = has_none ? at::Tensor() : at::randn(plain[i].sizes()).to(plain[i].options());
      plain[i].mutable_grad() = gradient;
      fused[i].mutable_grad() = has_none ? at::Tensor() : gradient.clone();
    }
  }

  std::vector<at::Tensor> plain;
  std::vector<at::Tensor> fused;
};

// Each number of a step (moments, update, parameter) is the result of at most 16 roundings. They are relative to
// parameters below 8, and to moments, whose terms are gradients below 8. A step's change of a parameter depends on the
// state by less than a factor 1.
void expect_near(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  const double epsilon = expected.scalar_type() == at::kDouble ? std::ldexp(1, -53) : std::ldexp(1, -24);
  EXPECT_TRUE(actual.allclose(expected, 0, 8 * 16 * kFusedSteps * epsilon))
      << what << ": " << (actual - expected).abs().max().item<double>();
}

template <class Optimizer, class Options>
void expect_like_plain(TwoCopies& copies, const Options& options) {
  Optimizer plain(copies.plain, options);
  Optimizer fused(copies.fused, options);
  for (int64_t step = 0; step < kFusedSteps; ++step) {
    copies.set_gradients(step);
    plain.step();
    ASSERT_TRUE(can_step_fused(fused));
    fused_step(fused);
    for (size_t i = 0; i < copies.plain.size(); ++i) {
      expect_near(copies.fused[i], copies.plain[i], "parameter " + std::to_string(i));
    }
  }
  ASSERT_EQ(fused.state().size(), plain.state().size());
}

template <class State, class Optimizer>
const State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  return static_cast<const State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

struct Options {
  std::string name;
  AdamWOptions adamw;
  SGDOptions sgd;
};

void PrintTo(const Options& options, std::ostream* out) { *out << options.name; }

class FusedStepTest : public ::testing::TestWithParam<std::tuple<at::DeviceType, at::ScalarType, Options>> {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(std::get<0>(GetParam())); }
  TwoCopies copies() const { return {std::get<0>(GetParam()), std::get<1>(GetParam())}; }
  const Options& options() const { return std::get<2>(GetParam()); }
};

TEST_P(FusedStepTest, OfAdamWIsLibTorchs) {
  TwoCopies parameters = copies();
  expect_like_plain<AdamW>(parameters, options().adamw);
}

TEST_P(FusedStepTest, OfSgdIsLibTorchs) {
  TwoCopies parameters = copies();
  expect_like_plain<SGD>(parameters, options().sgd);
}

const std::vector<Options> kOptions = {
    {"plain", AdamWOptions(kRate).weight_decay(0), SGDOptions(kRate)},
    {"decay", AdamWOptions(kRate).weight_decay(0.1), SGDOptions(kRate).weight_decay(0.1)},
    {"moments", AdamWOptions(kRate).betas({0.5, 0.99}).weight_decay(0.1),
     SGDOptions(kRate).momentum(0.9).weight_decay(0.1)},
    {"no_moments", AdamWOptions(kRate).betas({0, 0.99}), SGDOptions(kRate).momentum(0.5)},
    {"epsilon", AdamWOptions(kRate).eps(1), SGDOptions(kRate).momentum(0.9).nesterov(true)},
    {"decay_and_nesterov", AdamWOptions(kRate).betas({0.9, 0.999}).eps(1e-3).weight_decay(0.5),
     SGDOptions(kRate).momentum(0.9).nesterov(true).weight_decay(0.1)},
    {"dampening", AdamWOptions(0), SGDOptions(kRate).momentum(0.9).dampening(0.25)},
};

const auto kDtypes = ::testing::Values(at::kFloat, at::kDouble);
const auto kAllOptions = ::testing::ValuesIn(kOptions);

std::string name_of_case(const ::testing::TestParamInfo<FusedStepTest::ParamType>& test) {
  const auto& [device, dtype, options] = test.param;
  return options.name + "_" + c10::toString(dtype) + "_" + test::name_of(device);
}

INSTANTIATE_TEST_SUITE_P(Devices, FusedStepTest, ::testing::Combine(test::kDevices, kDtypes, kAllOptions),
                         name_of_case);

TEST(FusedStep, KeepsTheStateThatThePlainOneKeeps) {
  TwoCopies copies(at::kCPU, at::kFloat);
  AdamW plain(copies.plain, AdamWOptions(kRate));
  AdamW fused(copies.fused, AdamWOptions(kRate));
  for (int64_t step = 0; step < 5; ++step) {
    copies.set_gradients(step);
    plain.step();
    fused_step(fused);
  }
  for (size_t i = 0; i < copies.plain.size(); ++i) {
    const auto& ours = state_of<AdamWParamState>(fused, copies.fused[i]);
    const auto& theirs = state_of<AdamWParamState>(plain, copies.plain[i]);
    EXPECT_EQ(ours.step(), theirs.step()) << i;
    expect_near(ours.exp_avg(), theirs.exp_avg(), "exp_avg");
    expect_near(ours.exp_avg_sq(), theirs.exp_avg_sq(), "exp_avg_sq");
  }
  EXPECT_EQ(state_of<AdamWParamState>(fused, copies.fused[3]).step(), 2) << "had a gradient in two of five steps";
}

// The optimizer changes when the strides of a gradient no longer fit.
TEST(FusedStep, MayTakeTurnsWithThePlainOne) {
  TwoCopies copies(at::kCPU, at::kFloat);
  const SGDOptions sgd_options = SGDOptions(kRate).momentum(0.9);
  TwoCopies for_sgd(at::kCPU, at::kFloat);
  AdamW adamw_plain(copies.plain, AdamWOptions(kRate));
  AdamW adamw_mixed(copies.fused, AdamWOptions(kRate));
  SGD sgd_plain(for_sgd.plain, sgd_options);
  SGD sgd_mixed(for_sgd.fused, sgd_options);
  for (int64_t step = 0; step < kFusedSteps; ++step) {
    copies.set_gradients(step);
    for_sgd.set_gradients(step);
    adamw_plain.step();
    sgd_plain.step();
    if (step % 2 == 0) {
      fused_step(adamw_mixed);
      fused_step(sgd_mixed);
    } else {
      adamw_mixed.step();
      sgd_mixed.step();
    }
  }
  for (size_t i = 0; i < copies.plain.size(); ++i) {
    expect_near(copies.fused[i], copies.plain[i], "adamw " + std::to_string(i));
    expect_near(for_sgd.fused[i], for_sgd.plain[i], "sgd " + std::to_string(i));
  }
}

TEST(FusedStep, TakesParametersOfSeveralTypesAndNone) {
  const at::Tensor narrow = at::randn({8}).requires_grad_();
  const at::Tensor wide = at::randn({8}, at::kDouble).requires_grad_();
  AdamW optimizer(std::vector<at::Tensor>{narrow, wide}, AdamWOptions(kRate).weight_decay(0));
  fused_step(optimizer);  // There are no gradients, so nothing is to do.
  EXPECT_TRUE(optimizer.state().empty());
  narrow.mutable_grad() = at::ones({8});
  wide.mutable_grad() = at::ones({8}, at::kDouble);
  const at::Tensor before = narrow.detach().clone();
  fused_step(optimizer);
  // The first step equals the learning rate, up to eps and rounding errors of values below 8.
  EXPECT_TRUE((before - narrow).allclose(at::full({8}, kRate), 0, 16 * std::ldexp(1, -24) * 8));
  EXPECT_EQ(state_of<AdamWParamState>(optimizer, wide).exp_avg().scalar_type(), at::kDouble);
}

TEST(FusedStep, IsNotForGradientsOfOtherStrides) {
  const at::Tensor parameter = at::randn({3, 4}).requires_grad_();
  SGD optimizer(std::vector<at::Tensor>{parameter}, SGDOptions(kRate));
  parameter.mutable_grad() = at::randn({3, 4});
  EXPECT_TRUE(can_step_fused(optimizer));
  parameter.mutable_grad() = at::randn({4, 3}).t();
  EXPECT_FALSE(can_step_fused(optimizer));
}

TEST(FusedStep, IsNotForParametersThatOverlap) {
  const at::Tensor parameter = at::randn({1}).expand({4}).requires_grad_();
  parameter.mutable_grad() = at::randn({1}).expand({4});
  SGD optimizer(std::vector<at::Tensor>{parameter}, SGDOptions(kRate));
  EXPECT_FALSE(can_step_fused(optimizer));
}

TEST(FusedStep, RefusesAmsgrad) {
  const at::Tensor parameter = at::randn({3}).requires_grad_();
  parameter.mutable_grad() = at::randn({3});
  AdamW optimizer(std::vector<at::Tensor>{parameter}, AdamWOptions(kRate).amsgrad(true));
  EXPECT_THROW(fused_step(optimizer), c10::ValueError);
}

// A parameter with a gradient.
at::Tensor with_gradient(const at::Tensor& values, const at::Tensor& gradient) {
  at::Tensor parameter = values.clone().requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

std::vector<at::Tensor> one(const at::Tensor& parameter) { return {parameter}; }

// All pieces of a sharded parameter together take the step of the parameter.
TEST(Fused, GivesPiecesOfAParameterTheBitsOfTheWhole) {
  constexpr int64_t kSize = 1000;
  const at::Tensor whole = at::randn({kSize}).requires_grad_();
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& piece : whole.detach().split_with_sizes({1, 6, 64, 400, 529})) {
    pieces.push_back(piece.clone().requires_grad_());
  }
  Fused<AdamW> of_whole(one(whole), AdamWOptions(kRate).weight_decay(0.1));
  Fused<AdamW> of_pieces(pieces, AdamWOptions(kRate).weight_decay(0.1));
  for (int64_t step = 0; step < 5; ++step) {
    whole.mutable_grad() = at::randn({kSize});
    const auto gradients = whole.grad().split_with_sizes({1, 6, 64, 400, 529});
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].mutable_grad() = gradients[i].clone();
    }
    of_whole.step();
    of_pieces.step();
    EXPECT_TRUE(at::equal(at::cat(pieces), whole)) << step;
  }
}

TEST(Fused, StepsWithTheOwnKernelOnTheCpu) {
  const at::Tensor values = at::randn({1000});
  const at::Tensor gradient = at::randn({1000});
  const at::Tensor parameter = with_gradient(values, gradient);
  Fused<AdamW> optimizer(one(parameter), AdamWOptions(kRate).betas({0.8, 0.9}).eps(1e-3).weight_decay(0.1));
  optimizer.scale_next_step(0.3);
  optimizer.step();
  const at::Tensor average = at::zeros({1000});
  const at::Tensor squares = at::zeros({1000});
  cpu::step_adamw(cpu::adamw_factors({kRate, 0.8, 0.9, 1e-3, 0.1}, 1, 0.3),
                  {values.mutable_data_ptr<float>(), gradient.const_data_ptr<float>(),
                   average.mutable_data_ptr<float>(), squares.mutable_data_ptr<float>(), 1000});
  EXPECT_TRUE(at::equal(parameter, values));
  EXPECT_TRUE(at::equal(state_of<AdamWParamState>(optimizer, parameter).exp_avg(), average));
  EXPECT_TRUE(at::equal(state_of<AdamWParamState>(optimizer, parameter).exp_avg_sq(), squares));
}

// One scaled step, and one that is not. `gradient`: also of another order or dtype than `values`.
template <class Optimizer, class Options>
void expect_scaled_once(const at::Tensor& values, const at::Tensor& gradient, const Options& options) {
  constexpr double kScale = 0.3;
  const at::Tensor scaled_before = with_gradient(values, gradient * kScale);
  const at::Tensor scaled_in_step = with_gradient(values, gradient);
  Fused<Optimizer> before(one(scaled_before), options);
  Fused<Optimizer> in_step(one(scaled_in_step), options);
  in_step.scale_next_step(kScale);
  before.step();
  in_step.step();
  EXPECT_TRUE(at::equal(scaled_in_step, scaled_before));
  scaled_before.mutable_grad().copy_(gradient);
  scaled_in_step.mutable_grad().copy_(gradient);
  before.step();
  in_step.step();
  EXPECT_TRUE(at::equal(scaled_in_step, scaled_before));
}

TEST(Fused, ScalesTheGradientsOfOneStep) {
  const AdamWOptions adamw = AdamWOptions(kRate).weight_decay(0.1);
  const SGDOptions sgd = SGDOptions(kRate).momentum(0.9);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor values = at::randn({30, 40}, dtype);
    for (const at::Tensor& gradient : {at::randn({30, 40}, dtype), at::randn({40, 30}, dtype).t()}) {
      expect_scaled_once<AdamW>(values, gradient, adamw);
      expect_scaled_once<SGD>(values, gradient, sgd);
    }
  }
}

TEST(Fused, StepsAsLibTorchIfAGradientHasOtherStrides) {
  const at::Tensor values = at::randn({30, 40});
  const at::Tensor gradient = at::randn({40, 30}).t();
  const at::Tensor ours = with_gradient(values, gradient);
  const at::Tensor theirs = with_gradient(values, gradient);
  Fused<AdamW> fused(one(ours), AdamWOptions(kRate));
  AdamW plain(one(theirs), AdamWOptions(kRate));
  fused.step();
  plain.step();
  EXPECT_TRUE(at::equal(ours, theirs));
}

// LibTorch's first step of SGD with momentum copies the gradient and its strides.
TEST(Fused, TakesOverStateOfOtherStrides) {
  const at::Tensor values = at::randn({3, 4});
  const at::Tensor gradient = at::randn({4, 3}).t();
  const at::Tensor ours = with_gradient(values, gradient);
  const at::Tensor theirs = with_gradient(values, gradient);
  const SGDOptions options = SGDOptions(kRate).momentum(0.9);
  Fused<SGD> fused(one(ours), options);
  SGD plain(one(theirs), options);
  fused.step();
  plain.step();
  ASSERT_NE(state_of<SGDParamState>(fused, ours).momentum_buffer().strides(), ours.strides());
  ours.mutable_grad() = gradient.contiguous();
  theirs.mutable_grad() = gradient.contiguous();
  ASSERT_TRUE(can_step_fused(fused));
  fused.step();
  plain.step();
  expect_near(ours, theirs, "parameter");
}

// A backward pass that needs the parameter from before the step must fail instead of using the new one.
TEST(Fused, TellsAutogradThatParametersChanged) {
  for (const double momentum : {0.0, 0.9}) {
    const at::Tensor parameter = with_gradient(at::randn({8}), at::randn({8}));
    const at::Tensor loss = parameter.square().sum();
    Fused<SGD> optimizer(one(parameter), SGDOptions(kRate).momentum(momentum));
    optimizer.step();
    EXPECT_THROW(loss.backward(), c10::Error);
  }
}

TEST(Fused, ComputesGradientsAnewWithAClosure) {
  const at::Tensor ours = with_gradient(at::ones({3}), at::zeros({3}));
  Fused<SGD> optimizer(one(ours), SGDOptions(0.5));
  const auto closure = [&] {
    ours.mutable_grad().fill_(1);
    return at::ones({});
  };
  optimizer.step(closure);
  EXPECT_TRUE(at::equal(ours, at::full({3}, 0.5)));
  optimizer.scale_next_step(0.5);
  EXPECT_THROW(optimizer.step(closure), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast::optim
