// The counters of a training, over a restart and of all ranks.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "trainer/train/training/training_state.h"
#include "trainer/train/training/window.h"

namespace narrowcast::training {
namespace {

Counters example_counters() {
  Counters counters;
  counters.step = 30;
  counters.skipped_steps = 2;
  counters.skipped_in_a_row = 1;
  counters.seconds = 1.0 / 3;
  counters.training_loss = 0.1;
  counters.validation_accuracy = 1.0 / 7;
  counters.gradient_norm = std::numeric_limits<double>::infinity();
  counters.best_validation_loss = 0.3;
  counters.evaluations_since_best = 7;
  counters.window_loss = 2.0 / 3;
  counters.window_steps = 4;
  counters.window_batches = 5;
  counters.window_seconds = 0.7;
  return counters;
}

checkpoint::Restored restored_from(const Counters& counters, int64_t ranks) {
  checkpoint::Content content = {.step = counters.step, .training = {}, .replica = {}, .rank = {}};
  save_counters(counters, content);
  checkpoint::Restored restored;
  restored.step = counters.step;
  restored.former.world_size = ranks;
  restored.replica = content.replica;
  restored.former.states = {content.rank};
  return restored;
}

TEST(Counters, ComeBackToTheBit) {
  const Counters counters = load_counters(restored_from(example_counters(), 2), 2);
  EXPECT_EQ(counters.step, 30);
  EXPECT_EQ(counters.skipped_steps, 2);
  EXPECT_EQ(counters.skipped_in_a_row, 1);
  EXPECT_EQ(counters.seconds, 1.0 / 3);
  EXPECT_EQ(counters.training_loss, 0.1);
  EXPECT_FALSE(counters.validation_loss.has_value());
  EXPECT_EQ(counters.validation_accuracy, 1.0 / 7);
  EXPECT_EQ(counters.gradient_norm, std::numeric_limits<double>::infinity());
  EXPECT_EQ(counters.best_validation_loss, 0.3);
  EXPECT_EQ(counters.evaluations_since_best, 7);
  EXPECT_EQ(counters.window_loss, 2.0 / 3);
  EXPECT_EQ(counters.window_steps, 4);
  EXPECT_EQ(counters.window_batches, 5);
  EXPECT_EQ(counters.window_seconds, 0.7);
}

// Checkpoints that were written before this counter existed lack it.
TEST(Counters, MayLackSkippedStepsInARow) {
  Counters counters = example_counters();
  counters.skipped_in_a_row.reset();
  const checkpoint::Restored restored = restored_from(counters, 1);
  EXPECT_EQ(restored.replica.count("counters.skipped_in_a_row"), 0u);
  EXPECT_FALSE(load_counters(restored, 1).skipped_in_a_row.has_value());
}

// Checkpoints of trainings that cannot end early lack them, and so do checkpoints written before early stops existed.
TEST(Counters, MayLackWhatEndsATrainingEarly) {
  Counters counters = example_counters();
  counters.best_validation_loss.reset();
  const checkpoint::Restored restored = restored_from(counters, 1);
  EXPECT_EQ(restored.replica.count("counters.best_validation_loss"), 0u);
  EXPECT_EQ(restored.replica.count("counters.evaluations_since_best"), 0u);
  EXPECT_FALSE(load_counters(restored, 1).best_validation_loss.has_value());
  EXPECT_EQ(load_counters(restored, 1).evaluations_since_best, 0);
}

// One rank takes over the sums of two ranks, and a third rank adds none. The mean over the ranks does not change.
TEST(Counters, TheLossSinceTheLastReportStaysAsAMean) {
  checkpoint::Restored both = restored_from(example_counters(), 2);
  both.former.states.push_back(both.former.states[0]);
  EXPECT_DOUBLE_EQ(load_counters(both, 1).window_loss, 2.0 / 3);
  checkpoint::Restored none = restored_from(example_counters(), 2);
  none.former.states.clear();
  EXPECT_EQ(load_counters(none, 3).window_loss, 0);
  EXPECT_DOUBLE_EQ(load_counters(restored_from(example_counters(), 2), 3).window_loss, 1);
}

TEST(Counters, NameWhatIsMissing) {
  checkpoint::Restored restored = restored_from(example_counters(), 1);
  restored.replica.erase("counters.seconds");
  EXPECT_EQ(testing::error_message<CorruptInputError>([&] { load_counters(restored, 1); }),
            "'counters.seconds' is missing");
  restored = restored_from(example_counters(), 1);
  restored.replica["counters.window_steps"] = at::zeros({});
  EXPECT_EQ(testing::error_message<CorruptInputError>([&] { load_counters(restored, 1); }),
            "'counters.window_steps' is not a number of type Long");
}

TEST(WindowOfAllRanks, HasTheMeanTheRanksThatSkippedAndTheLargestMemory) {
  testing::run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    const Window window = window_of_all_ranks(group, {.loss = 1.0 + static_cast<double>(rank),
                                                      .steps = 2,
                                                      .nonfinite_steps = rank == 2 ? 5 : 0,
                                                      .skipped_in_a_row = rank == 0 ? 4 : 1,
                                                      .peak_memory_bytes = rank == 1 ? 5'000'000'001 : 7});
    EXPECT_EQ(window.loss, 1);
    EXPECT_TRUE(window.has_loss);
    EXPECT_EQ(window.peak_memory_bytes, 5'000'000'001);
    ASSERT_TRUE(window.skipped.has_value());
    EXPECT_THAT(window.skipped->nonfinite_ranks, ::testing::ElementsAre(2));
    EXPECT_EQ(window.skipped->in_a_row, 4);
  });
}

TEST(WindowOfAllRanks, HasNeitherLossNorSkippedStepsWithoutSteps) {
  testing::run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const Window window = window_of_all_ranks(group, {});
    EXPECT_FALSE(window.has_loss);
    EXPECT_FALSE(window.skipped.has_value());
    EXPECT_EQ(window.peak_memory_bytes, 0);
  });
}

}  // namespace
}  // namespace narrowcast::training
