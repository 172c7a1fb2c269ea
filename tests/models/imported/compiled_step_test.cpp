// Training steps that the backward pass runs (Model::compute_loss_in_backward).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "models/imported/package_model.h"
#include "tests/models/imported/package_gradients.h"
#include "tests/models/imported/small_package.h"
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using testing::copy_of;
using testing::eager_gradients;
using testing::eager_loss;
using testing::error_message;
using testing::expect_gradients;
using ::testing::HasSubstr;
using testing::small_batch;
using testing::SmallPackage;
using testing::State;

std::shared_ptr<PackageModel> deferred_model(const SmallPackage& package = {}) {
  auto model = testing::model_of(package);
  model->compute_loss_in_backward();
  return model;
}

TEST(CompiledStep, ComputesLossAndGradients) {
  const auto model = deferred_model();
  for (const uint64_t step : {1, 2}) {
    const Batch batch = small_batch(step);
    const State state = copy_of(*model);
    model->zero_grad();
    const at::Tensor loss = model->forward(batch);
    EXPECT_TRUE(loss.isnan().item<bool>()) << "the step has not run yet";
    EXPECT_TRUE(copy_of(*model).at("steps").equal(state.at("steps")));
    loss.backward();
    EXPECT_TRUE(loss.allclose(eager_loss(state, batch), 1e-5, 1e-6));
    expect_gradients(*model, eager_gradients(state, batch));
    testing::expect_separate_memory(*model);
    const State after = copy_of(*model);
    EXPECT_EQ(after.at("steps").item<int64_t>(), state.at("steps").item<int64_t>() + 1);
    EXPECT_TRUE(after.at("current").equal(batch.inputs.mean(0)));
    EXPECT_TRUE(after.at("previous").equal(state.at("current")));
  }
}

TEST(CompiledStep, GradientsHaveTheFactorOfTheLossAndAreAddedUp) {
  const auto model = deferred_model();
  State sum;
  for (const uint64_t seed : {3, 4}) {
    const Batch batch = small_batch(seed);
    for (const auto& [name, gradient] : eager_gradients(copy_of(*model), batch, 0.5)) {
      sum[name] = sum.contains(name) ? sum[name] + gradient : gradient;
    }
    (model->forward(batch) * 0.5).backward();
  }
  expect_gradients(*model, sum);
  testing::expect_separate_memory(*model);
}

TEST(CompiledStep, ParametersCanBeFrozenLater) {
  const auto model = deferred_model();
  model->named_parameters()["layers.0.shift"].requires_grad_(false);
  const Batch batch = small_batch(6);
  const State state = copy_of(*model);
  model->forward(batch).backward();
  expect_gradients(*model, eager_gradients(state, batch));
}

TEST(CompiledStep, WithoutGradientsTheStepRunsAtOnce) {
  const auto model = deferred_model();
  const Batch batch = small_batch(7);
  const State state = copy_of(*model);
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(model->forward(batch).allclose(eager_loss(state, batch), 1e-5, 1e-6));
  }
  model->eval();
  EXPECT_TRUE(model->forward(batch).isfinite().item<bool>());
  EXPECT_EQ(copy_of(*model).at("steps").item<int64_t>(), state.at("steps").item<int64_t>() + 1);
}

TEST(CompiledStep, WrongBatchesAreErrorsOfTheForwardPass) {
  const auto model = deferred_model();
  EXPECT_THAT(error_message<c10::ValueError>([&] { model->forward(small_batch(8, 17)); }),
              HasSubstr("takes from 2 to 16 samples at once, but got 17"));
}

TEST(CompiledStep, RunsOnce) {
  const auto model = deferred_model();
  const at::Tensor loss = model->forward(small_batch(9));
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THAT(error_message<c10::Error>([&] { loss.backward(); }),
              HasSubstr("the backward pass of a compiled training step can run only once"));
}

// For example of a lost peer.
TEST(CompiledStep, ErrorsOfHooksPassThrough) {
  const auto model = deferred_model();
  int64_t calls = 0;
  for (const char* const name : {"level", "layers.0.weight"}) {
    model->named_parameters()[name].register_hook([&](const at::Tensor&) {
      ++calls;
      TORCH_CHECK_INDEX(false, "the hook fails");
    });
  }
  const at::Tensor loss = model->forward(small_batch(11));
  EXPECT_THAT(error_message<c10::IndexError>([&] { loss.backward(); }), HasSubstr("the hook fails"));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(copy_of(*model).at("steps").item<int64_t>(), 5);
}

}  // namespace
}  // namespace narrowcast::models
