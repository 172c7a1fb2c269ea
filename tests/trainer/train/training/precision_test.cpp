#include "trainer/train/training/precision.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <narrowcast/errors.h>
#include "tests/support/devices.h"
#include "tests/support/error_message.h"
#include "tests/trainer/train/training/small_text.h"

namespace narrowcast::training {
namespace {

using testing::error_message;
using testing::small_models;
using testing::small_text;

at::Tensor loss_of(models::Model& model, const models::Batch& batch, Precision precision) {
  const Autocast autocast(batch.inputs.device().type(), precision);
  return model.forward(batch);
}

TEST(Precision, HasItsNames) {
  for (const char* const name : {"fp32", "bf16", "fp16"}) {
    EXPECT_EQ(to_string(parse_precision(name)), name);
  }
  EXPECT_EQ(error_message<c10::ValueError>([] { parse_precision("fp8"); }),
            "precision: unknown name 'fp8'; known: fp32, bf16, fp16");
}

TEST(Precision, FullPrecisionIsTheModelsOwn) {
  const auto model = small_models(1)[0];
  const models::Batch batch = small_text().training_batch({1, 2, 3});
  EXPECT_TRUE(at::equal(loss_of(*model, batch, Precision::kFp32), model->forward(batch)));
}

class NarrowPrecisionTest : public ::testing::TestWithParam<Precision> {};

// A loss of some ln 20 = 3 from logits of size 1 at most, which some ten matrix products have rounded one after another
// to 8 (bf16) or 11 (fp16) significant bits.
TEST_P(NarrowPrecisionTest, RoundsTheLoss) {
  const auto model = small_models(1)[0];
  const models::Batch batch = small_text().training_batch({1, 2, 3});
  const double exact = model->forward(batch).item<double>();
  const at::Tensor loss = loss_of(*model, batch, GetParam());
  const double rounding = GetParam() == Precision::kBf16 ? 0x1p-9 : 0x1p-12;
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NE(loss.item<double>(), exact);
  EXPECT_NEAR(loss.item<double>(), exact, 2 * 10 * rounding);
}

TEST_P(NarrowPrecisionTest, LeavesGradientsInFloat32) {
  const auto model = small_models(1)[0];
  loss_of(*model, small_text().training_batch({1, 2, 3}), GetParam()).backward();
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  }
}

TEST_P(NarrowPrecisionTest, EndsWithItsScope) {
  const at::ScalarType before = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const Autocast outer(at::kCPU, Precision::kBf16);
    {
      const Autocast inner(at::kCPU, GetParam());
      EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), before);
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowPrecisionTest, ::testing::Values(Precision::kBf16, Precision::kFp16),
                         [](const auto& info) { return to_string(info.param); });

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

// By 65536, a power of two: exact.
TEST_P(GradientScalerTest, TellsTheNormOfTheDividedGradients) {
  GradientScaler scaler(device());
  const GradientScaler::Unscaled finite =
      scaler.unscale_and_measure({parameter_with({3 * 65536.0F}), parameter_with({4 * 65536.0F})});
  EXPECT_TRUE(finite.are_finite);
  EXPECT_EQ(finite.norm, 5);
  const GradientScaler::Unscaled infinite =
      scaler.unscale_and_measure({parameter_with({std::numeric_limits<float>::infinity()})});
  EXPECT_FALSE(infinite.are_finite);
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_EQ(scaler.change(), 0.5);
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

TEST_P(GradientScalerTest, ResumesFromItsState) {
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
