#include "trainer/train/training/optimizer_steps.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "models/imported/script_model.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train/training/small_text.h"

namespace narrowcast::training {
namespace {

using ::testing::ElementsAre;
using testing::kSmallContext;
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
    counters.step = 4;  // Simulates a checkpoint of step 4.
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

// Records the factors by which its state should be multiplied.
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

// A range of training steps.
struct Steps {
  int64_t first;
  int64_t last;
};

// A model whose gradients are NaN on rank 1 in some steps.
class PoisonedModel : public models::Model {
 public:
  PoisonedModel(int64_t rank, Steps poisoned)
      : rank_(rank), poisoned_(poisoned), weight_(register_parameter("weight", at::ones({3}))) {}

  at::Tensor forward(const models::Batch& batch) override {
    const int64_t step = is_training() ? ++passes_ : 0;
    const bool poisoned = rank_ == 1 && poisoned_.first <= step && step <= poisoned_.last;
    const double factor = poisoned ? std::numeric_limits<double>::quiet_NaN() : 1;
    return (weight_ * batch.inputs.to(at::kFloat).mean()).square().sum() * factor;
  }
  models::ModelOptions options() const override { return {}; }

  at::Tensor weight() const { return weight_.detach(); }

 private:
  int64_t rank_;
  Steps poisoned_;
  int64_t passes_ = 0;
  at::Tensor weight_;
};

// Records the reports of steps.
struct StepRecorder : reporting::TrainingObserver {
  void on_step(const reporting::StepReport& report) override { steps.push_back(report); }
  void on_evaluation(const reporting::EvaluationReport& /*report*/) override {}
  std::vector<reporting::StepReport> steps;
};

struct PoisonedTraining {
  std::vector<TrainingResult> results = std::vector<TrainingResult>(2);
  std::vector<at::Tensor> weights = std::vector<at::Tensor>(2);
  StepRecorder recorder;  // of rank 0
};

PoisonedTraining train_poisoned(const TrainingOptions& options, Steps poisoned) {
  PoisonedTraining training;
  const data::TextDataset dataset = small_text();
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto model = std::make_shared<PoisonedModel>(rank, poisoned);
    training.results[rank] = train(
        {.model = model, .dataset = dataset, .group = group, .observer = rank == 0 ? &training.recorder : nullptr},
        options);
    training.weights[rank] = model->weight();
  });
  return training;
}

TEST(OptimizerSteps, AStepWhoseGradientIsNotFiniteIsSkippedOnAllRanks) {
  TrainingOptions options = small_training();
  const PoisonedTraining training = train_poisoned(options, {3, 3});
  for (const TrainingResult& result : training.results) {
    EXPECT_EQ(result.skipped_steps, 1);
    EXPECT_FALSE(result.diverged_at.has_value());
    EXPECT_TRUE(std::isfinite(result.training_loss));
  }
  EXPECT_TRUE(training.weights[0].isfinite().all().item<bool>());
  EXPECT_TRUE(training.weights[0].equal(training.weights[1]));
  options.skip_nonfinite_steps = false;
  const PoisonedTraining ruined = train_poisoned(options, {3, 3});
  EXPECT_EQ(ruined.results[0].diverged_at, 4);
  EXPECT_TRUE(ruined.weights[0].isnan().all().item<bool>());
}

// The mean is NaN on both ranks.
TEST(OptimizerSteps, TellWhoseGradientsWereNotFinite) {
  const PoisonedTraining training = train_poisoned(small_training(), {3, 3});
  ASSERT_EQ(training.recorder.steps.size(), 3U);  // After steps 2, 4 and 6.
  EXPECT_FALSE(training.recorder.steps[0].skipped.has_value());
  ASSERT_TRUE(training.recorder.steps[1].skipped.has_value());
  EXPECT_THAT(training.recorder.steps[1].skipped->nonfinite_ranks, ElementsAre(1));
  EXPECT_EQ(training.recorder.steps[1].skipped->in_a_row, 0) << "step 4 was taken";
  EXPECT_FALSE(training.recorder.steps[2].skipped.has_value());
}

TEST(OptimizerSteps, ATrainingGoesOnAfterAReportWithoutAnyStep) {
  const PoisonedTraining training = train_poisoned(small_training(), {3, 4});
  EXPECT_TRUE(std::isnan(training.recorder.steps.at(1).loss));
  EXPECT_EQ(training.recorder.steps.at(1).skipped->in_a_row, 2);
  for (const TrainingResult& result : training.results) {
    EXPECT_EQ(result.skipped_steps, 2);
    EXPECT_FALSE(result.diverged_at.has_value());
    EXPECT_TRUE(std::isfinite(result.training_loss));
  }
}

TEST(OptimizerSteps, SoManySkippedStepsInARowEndATraining) {
  TrainingOptions options = small_training();
  options.steps = 20;
  options.max_skipped_steps = 4;
  for (const TrainingResult& result : train_poisoned(options, {2, 20}).results) {
    EXPECT_EQ(result.diverged_at, 6) << "at the report after the fifth";
    ASSERT_TRUE(result.gave_up_after.has_value());
    EXPECT_EQ(result.gave_up_after->in_a_row, 5);
    EXPECT_THAT(result.gave_up_after->nonfinite_ranks, ElementsAre(1));
  }
  EXPECT_FALSE(train_poisoned(options, {2, 4}).results[0].diverged_at.has_value());
}

// The limit is not reached, but the result of the last steps is unknown.
TEST(OptimizerSteps, ATrainingThatEndsWithSkippedStepsHasNoLoss) {
  const PoisonedTraining training = train_poisoned(small_training(), {5, 6});
  EXPECT_EQ(training.results[0].diverged_at, 6);
  EXPECT_FALSE(training.results[0].gave_up_after.has_value());
}

// A TorchScript model whose code writes buffers in place (batch norm, its number of batches) and assigns others. The
// inputs are NaN in chosen forward passes.
class PoisonedNorm : public models::Model {
 public:
  // `poisoned`: passes in training, counted from 1.
  explicit PoisonedNorm(std::set<int64_t> poisoned)
      : poisoned_(std::move(poisoned)),
        script_(register_module(
            "script", std::make_shared<models::ScriptModel>(norm(), models::ScriptOptions{.name = "norm.pt"}))) {}

  at::Tensor forward(const models::Batch& batch) override {
    const bool poisoned = is_training() && poisoned_.contains(++passes_);
    const double added = poisoned ? std::numeric_limits<double>::quiet_NaN() : 0;
    return script_->forward({.inputs = batch.inputs.to(at::kFloat) + added, .targets = batch.targets});
  }
  models::ModelOptions options() const override { return {}; }

  std::vector<at::Tensor> copied_buffers() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& buffer : buffers()) copies.push_back(buffer.clone());
    return copies;
  }

 private:
  static torch::jit::Module norm() {
    torch::jit::Module module("Norm");
    module.register_attribute("training", c10::BoolType::get(), true);
    module.register_parameter("w", at::ones({kSmallContext}).requires_grad_(), /*is_buffer=*/false);
    module.register_buffer("running_mean", at::zeros({kSmallContext}));
    module.register_buffer("running_var", at::ones({kSmallContext}));
    module.register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
    module.register_buffer("average", at::zeros({}));
    module.register_buffer("seen", at::zeros({}, at::kLong));
    module.define(
        "def forward(self, x: Tensor, y: Tensor) -> Tensor:\n"
        "    if self.training:\n"
        "        self.num_batches_tracked.add_(1)\n"
        "        self.seen = self.seen + 1\n"
        "        self.average = self.average * 0.5 + x.mean()\n"
        "    z = torch.batch_norm(x, self.w, None, self.running_mean, self.running_var, self.training, 0.1, 1e-5, "
        "False)\n"
        "    return (z * self.w - 1.).square().mean() + self.average * 0.\n");
    return module;
  }

  const std::set<int64_t> poisoned_;
  int64_t passes_ = 0;
  std::shared_ptr<models::ScriptModel> script_;
};

// A case of a training with passes whose inputs are NaN.
struct SkippingCase {
  int64_t world_size;
  int64_t poisoned_rank;
  int64_t accumulation_steps;
  bool local;  // each rank steps and skips by itself
};

class SkippedStepTest : public ::testing::TestWithParam<SkippingCase> {};

bool have_equal_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

// In steps 2, 3 and 5 one pass is poisoned. With accumulation it is the first, the last and the first of two.
TEST_P(SkippedStepTest, LeavesTheBuffersAsTheyWere) {
  const auto [world_size, poisoned_rank, accumulation_steps, local] = GetParam();
  const std::set<int64_t> poisoned = accumulation_steps == 1 ? std::set<int64_t>{2, 3, 5} : std::set<int64_t>{3, 6, 9};
  const data::TextDataset dataset = small_text();
  run_ranks(world_size, [&, rank_of = poisoned_rank, accumulation = accumulation_steps, is_local = local](
                            int64_t rank, const ProcessGroupPtr& group) {
    const auto model = std::make_shared<PoisonedNorm>(rank == rank_of ? poisoned : std::set<int64_t>{});
    TrainingSetup setup = {.model = model, .dataset = dataset, .group = group};
    if (is_local) {
      setup.ddp.hook("post_local_sgd").local({.group_size = 1});
      setup.outer = OuterOptions().sync_every(4);
    }
    TrainingOptions options = small_training();
    options.accumulation_steps = accumulation;
    OptimizerSteps steps(setup, options);
    Counters counters;
    steps.begin_at(1);
    for (const int64_t step : {1, 2, 3, 4, 5, 6}) {
      const std::vector<at::Tensor> before = model->copied_buffers();
      steps.take_next(counters);
      const bool skipped = (step == 2 || step == 3 || step == 5) && (rank == rank_of || !is_local);
      EXPECT_EQ(counters.skipped_in_a_row.value_or(0) > 0, skipped) << "rank " << rank << ", step " << step;
      EXPECT_EQ(have_equal_bits(model->copied_buffers(), before), skipped) << "rank " << rank << ", step " << step;
    }
    const int64_t taken = rank == rank_of || !is_local ? 3 : 6;
    const auto buffers = model->named_buffers();
    EXPECT_EQ(buffers["script.num_batches_tracked"].item<int64_t>(), taken * accumulation);
    EXPECT_EQ(buffers["script.seen"].item<int64_t>(), taken * accumulation);
    EXPECT_TRUE(buffers["script.running_mean"].isfinite().all().item<bool>());
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, SkippedStepTest,
                         ::testing::Values(SkippingCase{1, 0, 1, false}, SkippingCase{1, 0, 2, false},
                                           SkippingCase{2, 0, 1, false}, SkippingCase{2, 1, 2, false},
                                           SkippingCase{3, 0, 2, false}, SkippingCase{4, 3, 1, false},
                                           SkippingCase{2, 0, 1, true}, SkippingCase{3, 2, 2, true}),
                         [](const auto& info) {
                           const SkippingCase& c = info.param;
                           return c10::str(c.world_size, "_ranks_poisoned_", c.poisoned_rank, "_passes_",
                                           c.accumulation_steps, c.local ? "_local" : "");
                         });

TEST(OptimizerSteps, AStepThatIsNotToBeSkippedKeepsItsBuffers) {
  const data::TextDataset dataset = small_text();
  run_ranks(1, [&](int64_t, const ProcessGroupPtr& group) {
    const auto model = std::make_shared<PoisonedNorm>(std::set<int64_t>{1});
    TrainingOptions options = small_training();
    options.skip_nonfinite_steps = false;
    OptimizerSteps steps({.model = model, .dataset = dataset, .group = group}, options);
    Counters counters;
    steps.begin_at(1);
    steps.take_next(counters);
    EXPECT_TRUE(model->named_buffers()["script.running_mean"].isnan().all().item<bool>());
  });
}

}  // namespace
}  // namespace narrowcast::training
