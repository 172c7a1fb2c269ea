#include "trainer/train/training/optimizer_steps.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/training/small_text.h"

namespace narrowcast::training {
namespace {

using testing::run_ranks;
using testing::small_models;
using testing::small_text;
using testing::small_training;

TEST(OptimizerSteps, CountsTheStepsThatItTakes) {
  const data::TextDataset dataset = small_text();
  const auto models = small_models(2);
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const TrainingSetup setup = {.model = models[rank], .dataset = dataset, .group = group};
    const TrainingOptions options = small_training();
    OptimizerSteps steps(setup, options);
    Counters counters;
    counters.step = 4;  // As after a checkpoint of step 4.
    steps.set_window_loss(1.5);
    steps.begin_at(5);
    steps.take_next(counters);
    const double loss = steps.window_loss() - 1.5;
    EXPECT_GT(loss, 1.5) << "of a model that is not trained";
    steps.take_next(counters);
    EXPECT_EQ(counters.step, 6);
    EXPECT_EQ(counters.window_steps, 2);
    EXPECT_EQ(counters.window_batches, 2);
    EXPECT_EQ(counters.skipped_steps, 0);
    EXPECT_EQ(counters.window_loss, 0) << "it stays on the device";
    EXPECT_GT(counters.gradient_norm.value(), 0);
    EXPECT_GT(steps.window_loss(), 1.5 + loss);
    EXPECT_DOUBLE_EQ(steps.learning_rate_of(6), LearningRateOptions().peak / 10);
    EXPECT_EQ(steps.plan().micro_batch(), 6);
    EXPECT_EQ(steps.parts().scaler, nullptr);
    EXPECT_EQ(steps.parts().batch_size, 12);
  });
}

TEST(OptimizerSteps, ScaleTheLossInFloat16) {
  const data::TextDataset dataset = small_text();
  const auto models = small_models(1);
  run_ranks(1, [&](int64_t, const ProcessGroupPtr& group) {
    const TrainingSetup setup = {.model = models[0], .dataset = dataset, .group = group};
    TrainingOptions options = small_training();
    options.precision = Precision::kFp16;
    OptimizerSteps steps(setup, options);
    EXPECT_NE(steps.parts().scaler, nullptr);
  });
}

// Keeps the factors by which its state was to be multiplied.
class RescaledHook final : public hooks::CommHook {
 public:
  explicit RescaledHook(std::vector<double>& factors) : factors_(factors) {}
  std::string_view name() const override { return "rescaled"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(bucket.getBuffer());
    return future;
  }
  void rescale_state(double factor) override { factors_.push_back(factor); }

 private:
  std::vector<double>& factors_;
};

TEST(OptimizerSteps, TellTheHookOfAnotherScale) {
  const data::TextDataset dataset = small_text();
  const auto models = small_models(1);
  run_ranks(1, [&](int64_t, const ProcessGroupPtr& group) {
    TrainingOptions options = small_training();
    options.precision = Precision::kFp16;
    options.steps = 8;
    OptimizerSteps steps({.model = models[0], .dataset = dataset, .group = group}, options);
    std::vector<double> factors;
    steps.model().register_comm_hook(std::make_unique<RescaledHook>(factors));
    const auto begin_with = [&](double scale, int64_t good_steps) {
      steps.parts().scaler->load_state(
          {{"scale", at::full({}, scale, at::kFloat)}, {"growth_tracker", at::full({}, good_steps, at::kInt)}});
    };
    Counters counters;
    steps.begin_at(1);
    begin_with(1024, 0);
    steps.take_next(counters);
    EXPECT_EQ(factors, std::vector<double>{}) << "the scale is what it was";
    begin_with(1024, 1999);
    steps.take_next(counters);
    EXPECT_EQ(factors, std::vector<double>{2}) << "the 2000th good step";
    begin_with(1e38, 0);
    steps.take_next(counters);
    EXPECT_EQ(factors, (std::vector<double>{2, 0.5})) << "gradients are not finite";
  });
}

// A model whose third training step on rank 1 has a gradient of NaN.
class PoisonedModel : public models::Model {
 public:
  explicit PoisonedModel(int64_t rank) : rank_(rank), weight_(register_parameter("weight", at::ones({3}))) {}

  at::Tensor forward(const models::Batch& batch) override {
    const bool poisoned = is_training() && ++passes_ == 3 && rank_ == 1;
    const double factor = poisoned ? std::numeric_limits<double>::quiet_NaN() : 1;
    return (weight_ * batch.inputs.to(at::kFloat).mean()).square().sum() * factor;
  }
  models::ModelOptions options() const override { return {}; }

  at::Tensor weight() const { return weight_.detach(); }

 private:
  int64_t rank_;
  int64_t passes_ = 0;
  at::Tensor weight_;
};

std::vector<TrainingResult> train_poisoned(const TrainingOptions& options, std::vector<at::Tensor>& weights) {
  std::vector<TrainingResult> results(2);
  const data::TextDataset dataset = small_text();
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto model = std::make_shared<PoisonedModel>(rank);
    results[rank] = train({.model = model, .dataset = dataset, .group = group}, options);
    weights[rank] = model->weight();
  });
  return results;
}

TEST(OptimizerSteps, AStepWhoseGradientIsNotFiniteIsSkippedOnAllRanks) {
  std::vector<at::Tensor> weights(2);
  TrainingOptions options = small_training();
  const auto results = train_poisoned(options, weights);
  for (const TrainingResult& result : results) {
    EXPECT_EQ(result.skipped_steps, 1);
    EXPECT_FALSE(result.diverged_at.has_value());
    EXPECT_TRUE(std::isfinite(result.training_loss));
  }
  EXPECT_TRUE(weights[0].isfinite().all().item<bool>());
  EXPECT_TRUE(weights[0].equal(weights[1]));
  options.skip_nonfinite_steps = false;
  EXPECT_EQ(train_poisoned(options, weights)[0].diverged_at, 4);
  EXPECT_TRUE(weights[0].isnan().all().item<bool>());
}

}  // namespace
}  // namespace narrowcast::training
