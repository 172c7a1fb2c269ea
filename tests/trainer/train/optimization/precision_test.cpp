#include "trainer/train/optimization/precision.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>

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

// The loss is about ln 20 = 3, from logits of at most 1. About ten matrix products in a row have rounded them to 8
// (bf16) or 11 (fp16) significant bits.
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

}  // namespace
}  // namespace narrowcast::training
