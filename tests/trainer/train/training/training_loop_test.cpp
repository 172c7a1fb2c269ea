#include "trainer/train/training/training_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/training/small_text.h"

namespace narrowcast::training {
namespace {

using ::testing::ElementsAre;
using testing::run_ranks;
using testing::small_models;
using testing::small_text;
using testing::small_training;

// Records all reports of a training.
struct Recorder : reporting::TrainingObserver {
  void on_step(const reporting::StepReport& report) override { steps.push_back(report); }
  void on_evaluation(const reporting::EvaluationReport& report) override { evaluations.push_back(report); }
  void on_buckets(const reporting::BucketsReport& report) override { buckets.push_back(report); }
  std::vector<reporting::StepReport> steps;
  std::vector<reporting::BucketsReport> buckets;
  std::vector<reporting::EvaluationReport> evaluations;
};

// The outcome of each rank.
struct Outcome {
  std::vector<std::shared_ptr<models::Model>> models;
  std::vector<TrainingResult> results;
  Recorder recorder;  // of rank 0
};

Outcome train_on(int64_t world_size, const TrainingOptions& options, const DdpOptions& ddp = {}) {
  Outcome outcome;
  outcome.models = small_models(world_size);
  outcome.results.resize(static_cast<size_t>(world_size));
  const data::TextDataset dataset = small_text();
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    outcome.results[rank] = train({.model = outcome.models[rank],
                                   .dataset = dataset,
                                   .group = group,
                                   .ddp = ddp,
                                   .units_per_sample = testing::kSmallContext,
                                   .observer = rank == 0 ? &outcome.recorder : nullptr},
                                  options);
  });
  return outcome;
}

double largest_difference(const models::Model& a, const models::Model& b) {
  const std::vector<at::Tensor> others = b.parameters();
  double largest = 0;
  for (size_t i = 0; i < others.size(); ++i) {
    largest = std::max(largest, (a.parameters()[i] - others[i]).abs().max().item<double>());
  }
  return largest;
}

std::vector<int64_t> steps_of(const Recorder& recorder) {
  std::vector<int64_t> steps;
  for (const auto& report : recorder.steps) {
    steps.push_back(report.step);
  }
  return steps;
}

class TrainingWorldTest : public ::testing::TestWithParam<int64_t> {};

// With plain SGD a step is linear in the gradient. Means over other numbers of ranks and micro-batches differ only by
// float32 rounding errors: about 1e-7 of gradients below 1, in six steps at a rate of 0.1. AdamW cannot be compared
// like this, because it divides tiny gradients by themselves.
TEST_P(TrainingWorldTest, IsTheSameForEveryWorldAndAccumulation) {
  TrainingOptions options = small_training();
  options.optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.1};
  options.learning_rate.peak = 0.1;
  options.batch_size = 24;
  const Outcome alone = train_on(1, options);
  const Outcome together = train_on(GetParam(), options);
  EXPECT_LT(largest_difference(*alone.models[0], *together.models[0]), 1e-6);
  EXPECT_NEAR(alone.results[0].training_loss, together.results[0].training_loss, 1e-5);
  options.accumulation_steps = 2;
  EXPECT_LT(largest_difference(*alone.models[0], *train_on(GetParam(), options).models[0]), 1e-6);
  EXPECT_GT(largest_difference(*alone.models[0], *small_models(1)[0]), 1e-2);
}

TEST_P(TrainingWorldTest, AllRanksEndWithTheSameBits) {
  for (const char* hook : {"none", "quantize_per_channel"}) {
    const Outcome outcome = train_on(GetParam(), small_training(), DdpOptions().hook(hook));
    for (int64_t rank = 1; rank < GetParam(); ++rank) {
      EXPECT_EQ(largest_difference(*outcome.models[0], *outcome.models[rank]), 0) << hook;
      EXPECT_EQ(outcome.results[rank].validation_loss, outcome.results[0].validation_loss) << hook;
      EXPECT_EQ(outcome.results[rank].training_loss, outcome.results[0].training_loss) << hook;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, TrainingWorldTest, ::testing::Values(1, 2, 3, 4));

// Computes much longer than other models for the same loss.
struct SlowGpt : models::CharGpt {
  using CharGpt::CharGpt;
  at::Tensor forward(const models::Batch& batch) override {
    const at::NoGradGuard unused;
    for (int i = 0; i < 200; ++i) CharGpt::forward(batch);
    const at::AutoGradMode used(true);
    return CharGpt::forward(batch);
  }
};

TEST(Train, ReportsForWhomRanksWait) {
  std::vector<std::shared_ptr<models::Model>> models = small_models(3);
  at::manual_seed(1);
  models[1] =
      std::make_shared<SlowGpt>(models::CharGptOptions{.layers = 1,
                                                       .heads = 2,
                                                       .width = 16,
                                                       .context = testing::kSmallContext,
                                                       .vocabulary_size = small_text().corpus().vocabulary().size()});
  Recorder recorder;
  const data::TextDataset dataset = small_text();
  TrainingOptions options = small_training();
  options.batch_size = 12;
  run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    train({.model = models[rank], .dataset = dataset, .group = group, .observer = rank == 0 ? &recorder : nullptr},
          options);
  });
  ASSERT_FALSE(recorder.steps.empty());
  for (const reporting::StepReport& report : recorder.steps) {
    ASSERT_TRUE(report.exchange.has_value());
    EXPECT_EQ(report.exchange->slowest_rank, 1);
    EXPECT_GT(report.exchange->share, 0);
    EXPECT_GT(report.exchange->waiting_share, 0.05) << "of two ranks that have little to do";
    EXPECT_LT(report.exchange->share + report.exchange->waiting_share, 1);
  }
  EXPECT_FALSE(train_on(1, small_training()).recorder.steps.at(0).exchange.has_value()) << "there is nobody";
}

TEST(Train, ReportsTheChosenBucketsOnce) {
  Recorder recorder;
  std::vector<std::shared_ptr<models::Model>> models;
  for (int64_t rank = 0; rank < 2; ++rank) {  // Models of 2.3 MiB.
    at::manual_seed(1);
    models.push_back(std::make_shared<models::CharGpt>(
        models::CharGptOptions{.layers = 1,
                               .heads = 2,
                               .width = 224,
                               .context = testing::kSmallContext,
                               .vocabulary_size = small_text().corpus().vocabulary().size()}));
  }
  const data::TextDataset dataset = small_text();
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    train({.model = models[rank],
           .dataset = dataset,
           .group = group,
           .ddp = DdpOptions().bucket_cap_mb(std::nullopt),
           .observer = rank == 0 ? &recorder : nullptr},
          small_training());
  });
  ASSERT_EQ(recorder.buckets.size(), 1u);
  const reporting::BucketsReport& report = recorder.buckets[0];
  EXPECT_EQ(report.step, 3);
  EXPECT_GT(report.backward_seconds, 0);
  ASSERT_EQ(report.sizes.size(), 3u);  // 1, 2 and 3 MiB.
  EXPECT_EQ(report.sizes[2].cap_mb, 3);
  EXPECT_EQ(report.chosen.seconds_left, report.sizes[static_cast<size_t>(report.chosen.cap_mb) - 1].seconds_left);
  EXPECT_TRUE(train_on(2, small_training(), DdpOptions().bucket_cap_mb(std::nullopt)).recorder.buckets.empty())
      << "there is nothing to choose for a small model";
}

TEST(Training, IsAPureFunctionOfItsInputs) {
  TrainingOptions options = small_training();
  const Outcome first = train_on(2, options);
  const Outcome again = train_on(2, options);
  EXPECT_EQ(largest_difference(*first.models[0], *again.models[0]), 0);
  EXPECT_EQ(first.results[0].validation_loss, again.results[0].validation_loss);
  options.seed = 1;
  EXPECT_GT(largest_difference(*first.models[0], *train_on(2, options).models[0]), 0);
}

TEST(Training, Learns) {
  TrainingOptions options = small_training();
  options.steps = 60;
  options.learning_rate.peak = 1e-2;
  options.eval_every = 10;
  const Outcome outcome = train_on(2, options, DdpOptions().hook("quantize_per_channel"));
  // The text has about 20 characters: an untrained model has a loss near ln 20 = 3.0.
  EXPECT_GT(outcome.recorder.evaluations.front().loss, 1.5);
  EXPECT_LT(*outcome.results[0].validation_loss, 1.0);
}

class TrainingPrecisionTest : public ::testing::TestWithParam<Precision> {};

TEST_P(TrainingPrecisionTest, LearnsAlikeOnAllRanks) {
  TrainingOptions options = small_training();
  options.steps = 60;
  options.learning_rate.peak = 1e-2;
  options.precision = GetParam();
  const Outcome outcome = train_on(2, options, DdpOptions().hook("int8"));
  EXPECT_EQ(largest_difference(*outcome.models[0], *outcome.models[1]), 0);
  EXPECT_LT(*outcome.results[0].validation_loss, 1.0);  // From 3.0, as above.
  EXPECT_EQ(outcome.results[0].skipped_steps, outcome.results[1].skipped_steps);
}

INSTANTIATE_TEST_SUITE_P(Narrow, TrainingPrecisionTest, ::testing::Values(Precision::kBf16, Precision::kFp16),
                         [](const auto& info) { return to_string(info.param); });

TEST(Training, ReportsAndEvaluatesWhenAsked) {
  TrainingOptions options = small_training();
  options.steps = 7;
  options.eval_every = 3;
  const Outcome outcome = train_on(2, options);
  EXPECT_THAT(steps_of(outcome.recorder), ElementsAre(2, 4, 6, 7));
  std::vector<int64_t> evaluated;
  for (const auto& report : outcome.recorder.evaluations) {
    evaluated.push_back(report.step);
  }
  EXPECT_THAT(evaluated, ElementsAre(3, 6, 7));
  EXPECT_EQ(outcome.recorder.evaluations.back().loss, outcome.results[0].validation_loss);
  const reporting::StepReport& last = outcome.recorder.steps.back();
  EXPECT_EQ(last.loss, outcome.results[0].training_loss);
  EXPECT_DOUBLE_EQ(last.learning_rate, LearningRateOptions().peak / 10);
  EXPECT_GT(last.gradient_norm.value(), 0);
  EXPECT_GT(last.units_per_second, 0);
  EXPECT_EQ(last.payload_bytes_sent, outcome.results[0].payload_bytes_sent);
  EXPECT_GT(last.peak_memory_bytes, 0);
  EXPECT_EQ(last.peak_memory_bytes, outcome.results[1].peak_memory_bytes);
}

TEST(Training, CountsThePayloadOncePerOptimizerStep) {
  TrainingOptions options = small_training();
  const int64_t once = train_on(2, options).results[0].payload_bytes_sent;
  int64_t parameters = 0;
  for (const at::Tensor& parameter : small_models(1)[0]->parameters()) {
    parameters += parameter.numel();
  }
  // A ring of two ranks sends 2 (W - 1) / W = 1 times the four bytes of each gradient.
  EXPECT_EQ(once, options.steps * parameters * 4);
  options.accumulation_steps = 3;
  EXPECT_EQ(train_on(2, options).results[0].payload_bytes_sent, once);
}

TEST(Training, ReportsTheCompressionOfTheHook) {
  const Outcome outcome = train_on(2, small_training(), DdpOptions().hook("bf16_compress"));
  for (const reporting::StepReport& report : outcome.recorder.steps) {
    EXPECT_EQ(report.compression, 2);
  }
  EXPECT_EQ(outcome.results[1].compression, 2);
  const Outcome alone = train_on(1, small_training());
  EXPECT_EQ(alone.recorder.steps[0].compression, std::nullopt);
  EXPECT_EQ(alone.results[0].compression, std::nullopt);
}

TEST(Training, WorksWithGradientsAsBucketViews) {
  const Outcome copies = train_on(2, small_training());
  const Outcome views = train_on(2, small_training(), DdpOptions().gradient_as_bucket_view(true));
  EXPECT_EQ(largest_difference(*copies.models[0], *views.models[0]), 0);
}

TEST(Training, WithoutClippingReportsNoNorm) {
  TrainingOptions options = small_training();
  options.clip_grad_norm = 0;
  EXPECT_FALSE(train_on(1, options).recorder.steps[0].gradient_norm.has_value());
}

TEST(Training, ClippingBoundsTheStep) {
  TrainingOptions options = small_training();
  options.steps = 1;
  options.optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0};
  options.learning_rate = {.peak = 1, .warmup_steps = 0, .schedule = ScheduleKind::kConstant};
  options.clip_grad_norm = 1e-3;
  const auto before = small_models(1)[0]->parameters();
  for (const Precision precision : {Precision::kFp32, Precision::kFp16}) {
    options.precision = precision;
    const Outcome outcome = train_on(1, options);
    EXPECT_GT(outcome.recorder.steps[0].gradient_norm.value(), 1e-3);
    double squares = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      squares += (outcome.models[0]->parameters()[i] - before[i]).to(at::kDouble).square().sum().item<double>();
    }
    // The parameters of size one, about 4,000, are rounded relatively by 2^-24.
    EXPECT_NEAR(std::sqrt(squares), 1e-3, 1e-5);
  }
}

TEST(Training, WithoutEvaluationThereIsNoValidationLoss) {
  TrainingOptions options = small_training();
  options.eval_batches = 0;
  const Outcome outcome = train_on(1, options);
  EXPECT_FALSE(outcome.results[0].validation_loss.has_value());
  EXPECT_TRUE(outcome.recorder.evaluations.empty());
}

// The steps change nothing: the first evaluation stays the best.
TEST(Training, EndsEarlyOnAllRanks) {
  TrainingOptions options = small_training();
  options.steps = 30;
  options.log_every = 4;
  options.eval_every = 3;
  options.early_stop = 2;
  options.learning_rate.peak = 1e-300;
  const Outcome outcome = train_on(2, options);
  for (const TrainingResult& result : outcome.results) {
    EXPECT_EQ(result.stopped_early_at, 9);
    EXPECT_EQ(result.best_validation_loss, result.validation_loss);
    EXPECT_FALSE(result.diverged_at.has_value());
    EXPECT_EQ(result.training_loss, outcome.results[0].training_loss);
  }
  EXPECT_EQ(outcome.recorder.evaluations.size(), 3u);
  EXPECT_THAT(steps_of(outcome.recorder), ElementsAre(4, 8, 9)) << "the last steps are reported, too";
  options.steps = 9;
  EXPECT_FALSE(train_on(2, options).results[1].stopped_early_at.has_value()) << "it was the last step anyway";
  options.steps = 12;
  options.early_stop = 0;
  EXPECT_FALSE(train_on(2, options).results[1].best_validation_loss.has_value());
}

// At this rate the loss goes up and down.
TEST(Training, EndsEarlyAfterEvaluationsInARowOnly) {
  TrainingOptions options = small_training();
  options.steps = 40;
  options.eval_every = 1;
  options.early_stop = 3;
  options.optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0};
  options.learning_rate = {.peak = 1, .warmup_steps = 0, .schedule = ScheduleKind::kConstant};
  options.clip_grad_norm = 0;
  const Outcome outcome = train_on(2, options);
  const auto& evaluations = outcome.recorder.evaluations;
  double best = evaluations.at(0).loss;
  int64_t in_a_row = 0;
  int64_t in_all = 0;
  for (size_t i = 1; i < evaluations.size(); ++i) {
    ASSERT_LT(in_a_row, 3) << "it should have ended before step " << evaluations[i].step;
    const bool is_better = evaluations[i].loss < best;
    in_a_row = is_better ? 0 : in_a_row + 1;
    in_all += is_better ? 0 : 1;
    best = std::min(best, evaluations[i].loss);
  }
  ASSERT_EQ(in_a_row, 3) << "this training must not come to its last step";
  ASSERT_GT(in_all, 3) << "nor must it end at the first three";
  EXPECT_EQ(outcome.results[1].stopped_early_at, evaluations.back().step);
  EXPECT_EQ(outcome.results[1].best_validation_loss, best);
}

TEST(Training, StopsOnAllRanksWhenTheLossIsNotFinite) {
  TrainingOptions options = small_training();
  options.optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0};
  options.learning_rate = {.peak = 1e30, .warmup_steps = 0, .schedule = ScheduleKind::kConstant};
  options.clip_grad_norm = 0;
  // The first step ruins the parameters. All others are skipped, so that no loss is left for the second report.
  options.max_skipped_steps = 3;
  const Outcome skipping = train_on(2, options);
  EXPECT_EQ(skipping.results[0].diverged_at, 4);
  EXPECT_EQ(skipping.results[1].diverged_at, 4);
  EXPECT_EQ(skipping.results[1].skipped_steps, 3);
  EXPECT_THAT(skipping.results[1].gave_up_after->nonfinite_ranks, ElementsAre(0, 1));
  EXPECT_THAT(steps_of(skipping.recorder), ElementsAre(2, 4));
  options.skip_nonfinite_steps = false;
  const Outcome outcome = train_on(2, options);
  EXPECT_EQ(outcome.results[0].diverged_at, 2);
  EXPECT_EQ(outcome.results[1].diverged_at, 2);
  EXPECT_EQ(outcome.results[1].skipped_steps, 0);
  EXPECT_THAT(steps_of(outcome.recorder), ElementsAre(2));
}

}  // namespace
}  // namespace narrowcast::training
