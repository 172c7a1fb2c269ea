// Trainings in which ranks take unequal numbers of samples of each batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/training/optimizer_steps.h"

namespace narrowcast::training {
namespace {

using resuming::equal_bits;
using resuming::feedback;
using resuming::Models;
using resuming::models_of;
using resuming::ResumeCase;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::small_text;
using testing::TemporaryFolder;

struct TrainedByShares {
  Models models;
  std::vector<TrainingResult> results;
};

TrainedByShares train_by_shares(int64_t world_size, const std::string& shares, TrainingOptions options,
                                const DdpOptions& ddp = {}) {
  options.shares = data::parse_shares(shares);
  TrainedByShares outcome = {testing::small_models(world_size),
                             std::vector<TrainingResult>(static_cast<size_t>(world_size))};
  const data::TextDataset dataset = small_text();
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    outcome.results[rank] =
        train({.model = outcome.models[rank], .dataset = dataset, .group = group, .ddp = ddp}, options);
  });
  return outcome;
}

double difference_between(const models::Model& a, const models::Model& b) {
  const std::vector<at::Tensor> others = b.parameters();
  double largest = 0;
  for (size_t i = 0; i < others.size(); ++i) {
    largest = std::max(largest, (a.parameters()[i] - others[i]).abs().max().item<double>());
  }
  return largest;
}

// As in TrainingWorldTest: rounding errors of float32 in six steps of SGD at a rate of 0.1.
TrainingOptions linear_training() {
  TrainingOptions options = testing::small_training();
  options.optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.1};
  options.learning_rate.peak = 0.1;
  options.batch_size = 24;
  options.clip_grad_norm = 0.5;
  return options;
}

TEST(UnequalShares, TrainAsOneProcessDoes) {
  TrainingOptions options = linear_training();
  const TrainedByShares alone = train_by_shares(1, "equal", options);
  for (const std::string shares : {"18,6", "3,21", "1,9,14", "2,2,2,18"}) {
    const int64_t world_size = 1 + std::ranges::count(shares, ',');
    for (const int64_t accumulation_steps : {1, 2}) {
      if (shares == "1,9,14" && accumulation_steps == 2) continue;  // A sample is not enough for two passes.
      options.accumulation_steps = accumulation_steps;
      const TrainedByShares together = train_by_shares(world_size, shares, options, DdpOptions().hook("allreduce"));
      EXPECT_LT(difference_between(*alone.models[0], *together.models[0]), 1e-6) << shares;
      for (int64_t rank = 0; rank < world_size; ++rank) {
        EXPECT_TRUE(equal_bits(*together.models[0], *together.models[rank])) << shares;
        EXPECT_NEAR(alone.results[0].training_loss, together.results[rank].training_loss, 1e-5) << shares;
        EXPECT_NEAR(*alone.results[0].validation_loss, *together.results[rank].validation_loss, 1e-5) << shares;
      }
    }
  }
}

TEST(UnequalShares, TrainInFloat16) {
  TrainingOptions options = linear_training();
  options.precision = Precision::kFp16;
  const TrainedByShares alone = train_by_shares(1, "equal", options);
  const TrainedByShares together = train_by_shares(2, "18,6", options);
  EXPECT_LT(difference_between(*alone.models[0], *together.models[0]), 1e-3);
}

TEST(UnequalShares, EqualNumbersHaveTheBitsOfEqualShares) {
  TrainingOptions options = testing::small_training();
  options.accumulation_steps = 3;
  const DdpOptions int8 = DdpOptions().hook("int8").wire(feedback(false));
  const TrainedByShares equal = train_by_shares(2, "equal", options, int8);
  const TrainedByShares given = train_by_shares(2, "6,6", options, int8);
  EXPECT_TRUE(equal_bits(*equal.models[0], *given.models[0]));
  EXPECT_EQ(equal.results[0].training_loss, given.results[0].training_loss);
}

TEST(UnequalShares, ResumeWithTheSameBits) {
  std::vector<ResumeCase> cases = {{"feedback", resuming::small_buckets().hook("int4").wire(feedback(true))},
                                   {"sharded", resuming::small_buckets().hook("int8").wire(feedback(false))}};
  cases[1].shards = OptimizerShards::kAll;
  for (ResumeCase& value : cases) {
    value.shares = data::parse_shares("9,3");
    const TemporaryFolder folder;
    const Models whole = models_of(2, value, 1);
    const auto expected = resuming::train_on(whole, {value, folder.path()});
    const Models resumed = models_of(2, value, 2);
    const auto results = resuming::train_on(resumed, {value, folder.path(), 3});
    EXPECT_TRUE(equal_bits(*whole[0], *resumed[0])) << value.name;
    EXPECT_EQ(expected[1].training_loss, results[1].training_loss) << value.name;
  }
}

// A model that needs so many milliseconds for each sample.
struct GptOfSlowSamples : models::CharGpt {
  GptOfSlowSamples(const models::CharGptOptions& options, int64_t milliseconds)
      : models::CharGpt(options), milliseconds_(milliseconds) {}
  at::Tensor forward(const models::Batch& batch) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_ * batch.inputs.size(0)));
    return CharGpt::forward(batch);
  }
  const int64_t milliseconds_;
};

struct SharesRecorder : reporting::TrainingObserver {
  void on_step(const reporting::StepReport&) override {}
  void on_evaluation(const reporting::EvaluationReport&) override {}
  void on_shares(const reporting::SharesReport& report) override { shares.push_back(report); }
  std::vector<reporting::SharesReport> shares;
};

TEST(UnequalShares, AutoDealsBySpeed) {
  const data::TextDataset dataset = small_text();
  TrainingOptions options = linear_training();
  options.steps = 12;
  options.shares = data::parse_shares("auto");
  SharesRecorder recorder;
  const models::CharGptOptions sizes = {.layers = 1,
                                        .heads = 2,
                                        .width = 16,
                                        .context = testing::kSmallContext,
                                        .vocabulary_size = dataset.corpus().vocabulary().size()};
  std::vector<std::shared_ptr<models::Model>> models;
  for (const int64_t milliseconds : {2, 6}) {
    at::manual_seed(1);
    models.push_back(std::make_shared<GptOfSlowSamples>(sizes, milliseconds));
  }
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    train({.model = models[rank], .dataset = dataset, .group = group, .observer = rank == 0 ? &recorder : nullptr},
          options);
  });
  EXPECT_TRUE(equal_bits(*models[0], *models[1]));
  ASSERT_EQ(recorder.shares.size(), 1);
  const reporting::SharesReport& report = recorder.shares[0];
  EXPECT_EQ(report.step, ShareChooser::kSkippedSteps + 2 * ShareChooser::kFirstHalf);
  EXPECT_EQ(report.samples[0] + report.samples[1], 24);
  EXPECT_NEAR(static_cast<double>(report.samples[0]), 18, 2);
  EXPECT_GT(report.seconds_per_sample[1], report.seconds_per_sample[0]);
}

// A collective: what a step after a checkpoint of `former_ranks` ranks with these shares leaves in the next checkpoint.
nlohmann::json shares_after(const TrainingSetup& setup, const nlohmann::json& shares, int64_t former_ranks) {
  TrainingOptions options = testing::small_training();
  options.shares = data::parse_shares("auto");
  OptimizerSteps steps(setup, options);
  checkpoint::Content content = save_training(steps.parts(), {});
  EXPECT_EQ(content.training.at("shares"), nlohmann::json({6, 6}));
  content.training["shares"] = shares;
  Counters counters = load_training({.step = 0,
                                     .training = content.training,
                                     .replica = content.replica,
                                     .former = {.world_size = former_ranks, .states = {content.rank}, .first = {}},
                                     .path = "a checkpoint"},
                                    steps.parts());
  steps.begin_at(1);
  steps.take_next(counters);
  EXPECT_EQ(nlohmann::json(steps.plan().options().shares),
            save_training(steps.parts(), counters).training.at("shares"));
  return steps.plan().options().shares;
}

TEST(UnequalShares, CheckpointsHoldWhatAutoHasChosen) {
  const data::TextDataset dataset = small_text();
  const auto models = testing::small_models(2);
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const TrainingSetup setup = {.model = models[rank], .dataset = dataset, .group = group};
    EXPECT_EQ(shares_after(setup, {9, 3}, 2), nlohmann::json({9, 3}));
    EXPECT_EQ(shares_after(setup, {9, 3}, 3), nlohmann::json({6, 6})) << "they are of another number of ranks";
    const auto complaint = [&](const nlohmann::json& shares) {
      return testing::error_message<CorruptInputError>([&] { shares_after(setup, shares, 2); });
    };
    EXPECT_THAT(complaint("x"), HasSubstr("a checkpoint: its 'shares' must be a list of integers, but are '\"x\"'"));
    EXPECT_THAT(complaint({11, 0}), HasSubstr("its shares 11,0 do not divide 12 samples among 2 ranks"));
  });
}

}  // namespace
}  // namespace narrowcast::training
