#include <narrowcast/grad_scaler.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/devices.h"
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using testing::error_message;

class GradScalerTest : public test::DeviceTest {
 protected:
  // A parameter with this gradient.
  at::Tensor parameter_with(const std::vector<float>& gradient) const {
    at::Tensor parameter = at::zeros({static_cast<int64_t>(gradient.size())}, device()).set_requires_grad(true);
    parameter.mutable_grad() = at::tensor(gradient).to(device());
    return parameter;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, GradScalerTest, test::kDevices, test::name_of_case);

TEST_P(GradScalerTest, ScalesTheLossAndDividesTheGradients) {
  GradScaler scaler(device());
  EXPECT_EQ(scaler.scale(at::full({}, 2.0F, device())).item<float>(), 131072);
  const std::vector<at::Tensor> parameters{parameter_with({65536, -131072}), parameter_with({0.5F}),
                                           at::zeros({3}, device()).set_requires_grad(true)};  // one without a gradient
  EXPECT_TRUE(scaler.unscale(parameters));
  EXPECT_TRUE(at::equal(parameters[0].grad().cpu(), at::tensor({1.0F, -2.0F})));
  EXPECT_EQ(parameters[1].grad().item<float>(), 0x1p-17F);
  EXPECT_EQ(scaler.get_scale(), 65536);
}

// The division by 65536, a power of two, is exact.
TEST_P(GradScalerTest, ReturnsTheNormOfTheDividedGradients) {
  GradScaler scaler(device());
  const GradScaler::Unscaled finite =
      scaler.unscale_and_measure({parameter_with({3 * 65536.0F}), parameter_with({4 * 65536.0F})});
  EXPECT_TRUE(finite.are_finite);
  EXPECT_EQ(finite.norm, 5);
  const GradScaler::Unscaled infinite =
      scaler.unscale_and_measure({parameter_with({std::numeric_limits<float>::infinity()})});
  EXPECT_FALSE(infinite.are_finite);
  EXPECT_EQ(scaler.get_scale(), 32768);
  EXPECT_EQ(scaler.change(), 0.5);
}

TEST_P(GradScalerTest, HalvesItsScaleWhenAGradientIsNotFinite) {
  GradScaler scaler(device());
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const double before = scaler.get_scale();
    EXPECT_FALSE(scaler.unscale({parameter_with({1}), parameter_with({1, bad})}));
    EXPECT_EQ(scaler.get_scale(), before / 2);
  }
}

TEST_P(GradScalerTest, DoublesItsScaleAfterSoManyGoodSteps) {
  GradScaler scaler(device(), {.init_scale = 8, .growth_interval = 3});
  std::vector<double> scales;
  for (const float gradient : {1.0F, 1.0F, std::numeric_limits<float>::infinity(), 1.0F, 1.0F, 1.0F, 1.0F}) {
    scaler.unscale({parameter_with({gradient})});
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 4, 4, 4, 8, 8}));
}

TEST_P(GradScalerTest, ResumesFromItsState) {
  GradScaler first(device(), {.init_scale = 8, .growth_interval = 2});
  first.unscale({parameter_with({1})});
  GradScaler second(device(), {.init_scale = 4, .growth_interval = 2});
  second.load_state(
      {{"scale", first.state().at("scale").clone()}, {"growth_tracker", first.state().at("growth_tracker").clone()}});
  second.unscale({parameter_with({1})});
  EXPECT_EQ(second.get_scale(), 16);
}

TEST_P(GradScalerTest, RefusesAnInvalidState) {
  GradScaler scaler(device());
  const auto complaint = [&](const at::Tensor& scale, const at::Tensor& tracker) {
    return error_message<CorruptInputError>([&] {
      scaler.load_state({{"scale", scale}, {"growth_tracker", tracker}});
    });
  };
  const at::Tensor scale = at::full({}, 4.0F);
  const at::Tensor tracker = at::zeros({}, at::kInt);
  EXPECT_EQ(error_message<CorruptInputError>([&] { scaler.load_state({}); }),
            "the gradient scaler's 'growth_tracker' is missing");
  EXPECT_EQ(complaint(at::zeros({1}), tracker), "the gradient scaler's 'scale' is Float [1], but must be Float []");
  EXPECT_EQ(complaint(at::zeros({}), tracker), "the gradient scaler's 'scale' must be positive and finite, but is 0");
  EXPECT_EQ(complaint(at::full({}, std::numeric_limits<float>::infinity()), tracker),
            "the gradient scaler's 'scale' must be positive and finite, but is inf");
  EXPECT_EQ(complaint(scale, at::full({}, -1, at::kInt)),
            "the gradient scaler's 'growth_tracker' must be at least 0, but is -1");
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_EQ(complaint(scale, tracker), "nothing was thrown");
  EXPECT_EQ(scaler.get_scale(), 4);
}

TEST(GradScaler, RefusesOptionsOutOfRange) {
  const auto complaint = [](const GradScalerOptions& options) {
    return error_message<c10::ValueError>([&] { GradScaler(at::kCPU, options); });
  };
  EXPECT_EQ(complaint({.init_scale = 0}), "init_scale: must be positive and finite in float32, but is 0");
  EXPECT_EQ(complaint({.init_scale = 1e39}), "init_scale: must be positive and finite in float32, but is 1e+39");
  EXPECT_EQ(complaint({.growth_factor = 1}), "growth_factor: must be greater than 1, but is 1");
  EXPECT_EQ(complaint({.backoff_factor = 1}), "backoff_factor: must be greater than 0 and less than 1, but is 1");
  EXPECT_EQ(complaint({.backoff_factor = std::nan("")}),
            "backoff_factor: must be greater than 0 and less than 1, but is nan");
  EXPECT_EQ(complaint({.growth_interval = 0}), "growth_interval: must be at least 1, but is 0");
}

}  // namespace
}  // namespace narrowcast
