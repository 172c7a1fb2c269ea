#include "trainer/train/training/gradient_scaler.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include <narrowcast/errors.h>
#include "tests/support/devices.h"
#include "tests/support/error_message.h"

namespace narrowcast::training {
namespace {

using testing::error_message;

class GradientScalerTest : public test::DeviceTest {
 protected:
  // A parameter with this gradient.
  at::Tensor parameter_with(const std::vector<float>& gradient) const {
    at::Tensor parameter = at::zeros({static_cast<int64_t>(gradient.size())}, device()).set_requires_grad(true);
    parameter.mutable_grad() = at::tensor(gradient).to(device());
    return parameter;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, GradientScalerTest, test::kDevices, test::name_of_case);

TEST_P(GradientScalerTest, ScalesTheLossAndDividesTheGradients) {
  GradientScaler scaler(device());
  EXPECT_EQ(scaler.scaled(at::full({}, 2.0F, device())).item<float>(), 131072);
  const std::vector<at::Tensor> parameters{parameter_with({65536, -131072}), parameter_with({0.5F}),
                                           at::zeros({3}, device()).set_requires_grad(true)};  // one without a gradient
  EXPECT_TRUE(scaler.unscale(parameters));
  EXPECT_TRUE(at::equal(parameters[0].grad().cpu(), at::tensor({1.0F, -2.0F})));
  EXPECT_EQ(parameters[1].grad().item<float>(), 0x1p-17F);
  EXPECT_EQ(scaler.scale(), 65536);
}

TEST_P(GradientScalerTest, HalvesItsScaleWhenAGradientIsNotFinite) {
  GradientScaler scaler(device());
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const double before = scaler.scale();
    EXPECT_FALSE(scaler.unscale({parameter_with({1}), parameter_with({1, bad})}));
    EXPECT_EQ(scaler.scale(), before / 2);
  }
}

TEST_P(GradientScalerTest, DoublesItsScaleAfterSoManyGoodSteps) {
  GradientScaler scaler(device(), {.scale = 8, .growth_interval = 3});
  std::vector<double> scales;
  for (const float gradient : {1.0F, 1.0F, std::numeric_limits<float>::infinity(), 1.0F, 1.0F, 1.0F, 1.0F}) {
    scaler.unscale({parameter_with({gradient})});
    scales.push_back(scaler.scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 4, 4, 4, 8, 8}));
}

TEST_P(GradientScalerTest, GoesOnFromItsState) {
  GradientScaler first(device(), {.scale = 8, .growth_interval = 2});
  first.unscale({parameter_with({1})});
  GradientScaler second(device(), {.scale = 4, .growth_interval = 2});
  second.load_state(
      {{"scale", first.state().at("scale").clone()}, {"growth_tracker", first.state().at("growth_tracker").clone()}});
  second.unscale({parameter_with({1})});
  EXPECT_EQ(second.scale(), 16);
}

TEST_P(GradientScalerTest, RefusesAStateThatIsNone) {
  GradientScaler scaler(device());
  EXPECT_EQ(error_message<CorruptInputError>([&] { scaler.load_state({}); }),
            "the gradient scaler's 'growth_tracker' is missing");
  const at::Tensor tracker = at::zeros({}, at::kInt);
  EXPECT_EQ(error_message<CorruptInputError>([&] {
              scaler.load_state({{"growth_tracker", tracker}, {"scale", at::zeros({1})}});
            }),
            "the gradient scaler's 'scale' is Float [1], but must be Float []");
  EXPECT_EQ(scaler.scale(), 65536);
}

}  // namespace
}  // namespace narrowcast::training
