// Trainings with rounds of sync_seconds. Each look at a rank's clock takes some of its time, so that no test waits and
// the numbers of steps are known.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/outer_options.h>
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::training {
namespace {

using resuming::equal_bits;
using resuming::Models;
using ::testing::ElementsAre;
using testing::run_ranks;
using testing::small_models;
using testing::small_text;
using testing::TemporaryFolder;

constexpr double kSeconds = 8;
constexpr int64_t kSteps = 30;
// Seconds of a step, by rank: a round has 8, 4, 1 and 2 steps.
constexpr double kSecondsPerStep[] = {1, 2, 8, 4};

// Seconds that pass with each look.
std::function<double()> clock_of(double step) {
  return [step, now = 0.0]() mutable { return now += step; };
}

TrainingOptions options_of_rounds() {
  TrainingOptions options = testing::small_training();
  options.steps = kSteps;
  options.log_every = 10;
  options.eval_every = 20;
  return options;
}

DdpOptions local_ddp(int64_t warmup = 0, int64_t group_size = 1) {
  return resuming::small_buckets().hook("post_local_sgd").local({.start = warmup, .group_size = group_size});
}

OuterOptions exchanged() {
  return OuterOptions().wire({.format = WireFormat::kFp32, .node_size = 1, .link_gbit = 1, .link_us = 100});
}

OuterOptions timed(int64_t rank) { return exchanged().sync_seconds(kSeconds).clock(clock_of(kSecondsPerStep[rank])); }

// Remembers the samples of each batch.
class RecordedText final : public data::Dataset {
 public:
  int64_t training_size() const override { return text_.training_size(); }
  int64_t held_out_size() const override { return text_.held_out_size(); }
  models::Batch training_batch(at::IntArrayRef indices) const override {
    drawn.push_back(indices.vec());
    return text_.training_batch(indices);
  }
  models::Batch held_out_batch(at::IntArrayRef indices) const override { return text_.held_out_batch(indices); }
  std::optional<int64_t> class_bound() const override { return text_.class_bound(); }

  mutable std::vector<std::vector<int64_t>> drawn;

 private:
  const data::TextDataset text_ = small_text();
};

struct Reports : reporting::TrainingObserver {
  void on_step(const reporting::StepReport& report) override { steps.push_back(report); }
  void on_evaluation(const reporting::EvaluationReport& report) override { evaluations.push_back(report.step); }
  std::vector<reporting::StepReport> steps;
  std::vector<int64_t> evaluations;
};

struct TimedRun {
  TrainingOptions options = options_of_rounds();
  DdpOptions ddp = local_ddp();
  std::function<OuterOptions(int64_t rank)> outer = &timed;
  std::string folder = {};                     // of checkpoints; empty: none
  std::optional<int64_t> from = std::nullopt;  // a step
  bool is_preempted = false;                   // asks the last rank, at its second look
};

struct Ended {
  std::vector<TrainingResult> results;
  std::vector<RecordedText> texts;
  Reports reports;  // of rank 0
};

Ended train_on(const Models& models, const TimedRun& run) {
  Ended ended;
  ended.results.resize(models.size());
  ended.texts = std::vector<RecordedText>(models.size());
  run_ranks(static_cast<int64_t>(models.size()), [&](int64_t rank, const ProcessGroupPtr& group) {
    std::unique_ptr<checkpoint::CheckpointWriter> writer;
    std::optional<checkpoint::ReadCheckpoint> read;
    Checkpoints checkpoints = {.every = 10};
    if (run.from) {
      read = checkpoint::read_on_all_ranks(group, checkpoint::checkpoint_path(run.folder, *run.from));
      checkpoints.restored = &read->restored;
    } else if (!run.folder.empty()) {
      writer = std::make_unique<checkpoint::CheckpointWriter>(
          group, checkpoint::WriterOptions{.folder = run.folder, .keep = 0}, checkpoint::Description{});
      checkpoints.writer = writer.get();
    }
    int64_t looks = 0;
    if (run.is_preempted) {
      const bool is_last = rank + 1 == group->getSize();
      checkpoints.every = 1000;
      checkpoints.asked_to_stop = [&looks, is_last] { return ++looks > 1 && is_last ? SIGTERM : 0; };
    }
    ended.results[static_cast<size_t>(rank)] = train({.model = models[static_cast<size_t>(rank)],
                                                      .dataset = ended.texts[static_cast<size_t>(rank)],
                                                      .group = group,
                                                      .ddp = run.ddp,
                                                      .outer = run.outer(rank),
                                                      .units_per_sample = testing::kSmallContext,
                                                      .observer = rank == 0 ? &ended.reports : nullptr,
                                                      .checkpoints = checkpoints},
                                                     run.options);
  });
  return ended;
}

void expect_equal(const Models& models, const Models& others) {
  for (size_t rank = 0; rank < models.size(); ++rank) {
    EXPECT_TRUE(equal_bits(*models[rank], *others[rank % others.size()])) << "rank " << rank;
  }
}

// The rounds end at steps 8, 16, 24 and 30. Duties of steps 10 and 20 are done at 16 and 24.
TEST(TimedRounds, DoWhatIsDueAtTheEndOfARound) {
  const TemporaryFolder folder;
  const Models models = small_models(3);
  const Ended ended = train_on(models, {.folder = folder.path()});
  std::vector<int64_t> steps;
  std::vector<int64_t> most;
  for (const reporting::StepReport& report : ended.reports.steps) {
    steps.push_back(report.step);
    most.push_back(report.outer->round_steps->most);
    EXPECT_EQ(report.outer->round_steps->fewest, 1);
    EXPECT_TRUE(report.outer->replicas_are_equal);
    EXPECT_EQ(report.outer->staleness, 0);
  }
  EXPECT_THAT(steps, ElementsAre(16, 24, 30));
  EXPECT_THAT(most, ElementsAre(8, 8, 6));
  EXPECT_THAT(ended.reports.evaluations, ElementsAre(24, 30));
  EXPECT_THAT(checkpoint::checkpoint_steps(folder.path()), ElementsAre(30, 24, 16));
  EXPECT_LT(ended.reports.steps.back().loss, ended.reports.steps.front().loss);
  EXPECT_EQ(ended.results[0].outer->exchanges, 4);
  expect_equal(models, {models[0]});
}

// Rank 2 takes one step in a round, and has prepared the batch of the next one by then. It leaves out the steps over
// which it jumps.
TEST(TimedRounds, ARankDrawsTheBatchesOfItsOwnSteps) {
  const Ended ended = train_on(small_models(3), {});
  const TrainingOptions options = options_of_rounds();
  const data::BatchPlan plan = batch_plan(options, 3);
  const data::SampleOrder order(small_text().training_size(), options.seed);
  std::vector<std::vector<int64_t>> expected;
  for (const int64_t step : {1, 2, 9, 10, 17, 18, 25, 26}) {
    expected.push_back(plan.samples(order, 2, step - 1, /*micro_step=*/0));
  }
  EXPECT_EQ(ended.texts[2].drawn, expected);
  EXPECT_EQ(ended.texts[0].drawn.size(), kSteps) << "rank 0 takes all of them";
}

TEST(TimedRounds, ResumeWithTheSameBits) {
  const TemporaryFolder folder;
  const Models whole = small_models(3);
  const Ended expected = train_on(whole, {.folder = folder.path()});
  for (const int64_t from : {16, 24, 30}) {
    const Models resumed = small_models(3, 2);
    const Ended ended = train_on(resumed, {.folder = folder.path(), .from = from});
    expect_equal(resumed, whole);
    EXPECT_EQ(ended.results[0].validation_loss, expected.results[0].validation_loss);
    EXPECT_EQ(ended.results[0].training_loss, expected.results[0].training_loss);
  }
  const Models others = small_models(2, 2);
  const Ended ended = train_on(others, {.folder = folder.path(), .from = 16});
  EXPECT_TRUE(std::isfinite(ended.results[0].validation_loss.value()));
  expect_equal(others, {others[0]});
}

TEST(TimedRounds, ASignalStopsAllRanksAtTheEndOfARound) {
  const TemporaryFolder folder;
  const Ended preempted = train_on(small_models(3), {.folder = folder.path(), .is_preempted = true});
  ASSERT_TRUE(preempted.results[0].preempted.has_value());
  const int64_t step = preempted.results[0].preempted->step;
  EXPECT_EQ(step % 8, 0);
  EXPECT_LT(step, kSteps);
  for (const TrainingResult& result : preempted.results) EXPECT_EQ(result.preempted->step, step);
  const Models whole = small_models(3);
  train_on(whole, {});
  const Models resumed = small_models(3, 2);
  train_on(resumed, {.folder = folder.path(), .from = step});
  expect_equal(resumed, whole);
}

TEST(TimedRounds, EqualSpeedsHaveTheBitsOfSyncEvery) {
  TrainingOptions options = options_of_rounds();
  options.steps = 14;
  options.eval_every = 4;
  const auto counted = [](int64_t /*rank*/) { return exchanged().sync_every(4).warmup_steps(2); };
  const auto in_time = [](int64_t /*rank*/) { return exchanged().sync_seconds(4).clock(clock_of(1)).warmup_steps(2); };
  const Models models = small_models(3);
  const Models others = small_models(3);
  const DdpOptions views = local_ddp(2).gradient_as_bucket_view(true);  // Settling moves gradients to other buckets.
  const Ended ended = train_on(models, {.options = options, .ddp = views, .outer = in_time});
  const Ended expected = train_on(others, {.options = options, .ddp = local_ddp(2), .outer = counted});
  expect_equal(models, others);
  EXPECT_EQ(ended.results[0].validation_loss, expected.results[0].validation_loss);
  EXPECT_EQ(ended.results[0].training_loss, expected.results[0].training_loss);
  EXPECT_EQ(ended.results[0].payload_bytes_sent, expected.results[0].payload_bytes_sent);
  EXPECT_THAT(ended.reports.evaluations, ElementsAre(6, 10, 14)) << "at the ends of rounds";
  EXPECT_THAT(expected.reports.evaluations, ElementsAre(4, 8, 12, 14));
}

// Ranks 0 and 1 take 8 steps in a round, ranks 2 and 3 one.
TEST(TimedRounds, RanksOfAGroupTakeTheSameSteps) {
  const Models models = small_models(4);
  const Ended ended = train_on(models, {.ddp = local_ddp(/*warmup=*/0, /*group_size=*/2)});
  EXPECT_EQ(ended.texts[1].drawn.size(), kSteps);
  EXPECT_EQ(ended.texts[3].drawn.size(), 8);
  EXPECT_EQ(ended.reports.steps.back().outer->round_steps->fewest, 1);
  expect_equal(models, {models[0]});
}

// The size of buckets is chosen with all ranks, and new Reducers agree in the second step, before numbers of steps
// differ. No rank looks at its clock in the first step, so the rounds end at steps 5 and 9.
TEST(TimedRounds, BeginWhenTheSizeOfBucketsIsChosen) {
  const Models models = resuming::models_of(2, resuming::chosen_buckets(), 1);
  TimedRun run = {.ddp = DdpOptions().hook("post_local_sgd").local({.group_size = 1}).bucket_cap_mb(std::nullopt)};
  run.options.steps = 9;
  run.outer = [](int64_t rank) { return exchanged().sync_seconds(4).clock(clock_of(rank == 0 ? 1 : 4)); };
  const Ended ended = train_on(models, run);
  EXPECT_EQ(ended.results[0].outer->exchanges, 2);
  expect_equal(models, {models[0]});
}

}  // namespace
}  // namespace narrowcast::training
