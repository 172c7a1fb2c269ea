// Schedules and early stops with checkpoints: a resumed training ends as the uninterrupted one does, or is extended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/trainer/train/job/job_checkpoints.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class JobSchedulesTest : public testing::JobCheckpointsTest {};

TEST_F(JobSchedulesTest, AStablePhaseGoesOnToAnotherEnd) {
  job.training.steps = 10;
  job.training.learning_rate = {.warmup_steps = 1, .decay_steps = 3, .schedule = ScheduleKind::kWsd};
  run();
  const std::string whole = model();
  const std::string shorter = folder / "shorter";
  job.checkpoints.folder = shorter;
  job.output.folder = folder / "shorter-run";
  job.training.steps = 4;
  job.training.learning_rate.minimum = 0;
  job.training.learning_rate.decay_steps = 2;
  run();
  job.training.learning_rate.decay_steps = 3;
  job.training.learning_rate.minimum.reset();
  EXPECT_EQ(complaint(), "min_learning_rate: is 0.0005, but 0.0 in the checkpoint " + shorter + "/step-00000004");
  std::filesystem::remove_all(shorter + "/step-00000004");
  EXPECT_EQ(complaint(), "min_learning_rate: is 0.0005, but 0.0 in the checkpoint " + shorter + "/step-00000002")
      << "this decay would have begun before it";
  job.training.steps = 10;
  EXPECT_THAT(run(), AllOf(HasSubstr("step 2 of 10\n"), Not(HasSubstr("warning"))));
  EXPECT_EQ(files::read_file(folder / "shorter-run/model.safetensors"), whole);
}

// By default the warm-up is a twentieth of the steps: first 1, then 3 steps.
TEST_F(JobSchedulesTest, AConstantRateIsProlonged) {
  job.training.learning_rate.schedule = ScheduleKind::kConstant;
  job.training.steps = 20;
  run();
  job.training.steps = 60;
  job.training.learning_rate.warmup_steps = 21;
  EXPECT_EQ(complaint(), "warmup_steps: is 21, but 1 in the checkpoint " + checkpoints + "/step-00000020");
  job.training.learning_rate.warmup_steps.reset();
  EXPECT_THAT(run(), HasSubstr("step 20 of 60\n")) << "both warm-ups are over";
  job.training.learning_rate.peak *= 2;
  EXPECT_THAT(complaint(), HasSubstr("learning_rate: is "));
}

// The schedule after the warm-up depends on where the warm-up ended.
TEST_F(JobSchedulesTest, ACosineRemembersItsWarmUp) {
  job.training.steps = 4;
  job.training.learning_rate.warmup_steps = 1;
  run();
  job.training.learning_rate.warmup_steps = 2;
  EXPECT_THAT(complaint(), HasSubstr("warmup_steps: is 2, but 1 in the checkpoint "));
}

// The steps change nothing: the first evaluation, after step 2, stays the best.
TEST_F(JobSchedulesTest, EndsEarlyWhereTheWholeTrainingDid) {
  job.training.steps = 20;
  job.training.eval_every = 2;
  job.training.early_stop = 3;
  job.training.learning_rate.peak = 1e-300;
  const auto end = [&] {
    const std::string text = files::read_file(folder / "run/metrics.jsonl");
    return nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1));
  };
  run();
  EXPECT_THAT(results, HasSubstr("ended early      at step 8 of 20, 3 evaluations after the best validation loss of "));
  const nlohmann::json whole = end();
  EXPECT_EQ(whole["stopped_early_at"], 8);
  EXPECT_EQ(whole["best_validation_loss"], whole["validation_loss"]);
  std::filesystem::remove_all(checkpoints + "/step-00000008");
  std::filesystem::remove_all(checkpoints + "/step-00000006");
  EXPECT_THAT(run(), HasSubstr("step 4 of 20\n"));
  EXPECT_EQ(end()["stopped_early_at"], 8);
  EXPECT_EQ(end()["best_validation_loss"], whole["best_validation_loss"]);
  EXPECT_THAT(run(), AllOf(HasSubstr("step 8 of 20\n"), Not(HasSubstr("validation loss")))) << "nothing is left";
  EXPECT_EQ(end()["stopped_early_at"], 8);
  job.training.early_stop = 5;
  run();
  EXPECT_EQ(end()["stopped_early_at"], 12);
  job.training.early_stop = 0;
  run();
  EXPECT_FALSE(end().contains("stopped_early_at"));
  EXPECT_FALSE(end().contains("best_validation_loss")) << "nobody has looked since";
}

}  // namespace
}  // namespace narrowcast::job
