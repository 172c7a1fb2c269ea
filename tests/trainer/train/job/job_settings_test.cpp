#include "trainer/train/job/job_settings.h"

#include <gtest/gtest.h>

#include "tests/trainer/train/job/small_job.h"
#include "trainer/train/job/plan.h"

namespace narrowcast::job {
namespace {

using testing::small_job;
using testing::TemporaryFolder;

class JobSettingsTest : public ::testing::Test {
 protected:
  JobSettingsTest() : job(small_job(folder)) {}
  checkpoint::Description describe(int64_t ranks = 1) {
    return describe_job(job, make_plan(job, make_inputs(job), ranks));
  }
  const TemporaryFolder folder;
  TrainJob job;
};

TEST_F(JobSettingsTest, HoldFlagsByTheirNames) {
  job.ddp.hook("quantized_allreduce").wire({.error_feedback = true}).bucket_cap_mb(3);
  const nlohmann::json settings = describe().settings;
  EXPECT_EQ(settings["model"], "char_gpt");
  EXPECT_EQ(settings["width"], 16);
  EXPECT_EQ(settings["hook"], "quantized_allreduce");
  EXPECT_EQ(settings["hook_format"], "int8_b128");
  EXPECT_EQ(settings["error_feedback"], true);
  EXPECT_EQ(settings["bucket_cap_mb"], 3);
  EXPECT_EQ(settings["optimizer"], "adamw");
  EXPECT_EQ(settings["steps"], 4);
}

TEST_F(JobSettingsTest, HoldTheChannelSizeOfTheHookThatHasOne) {
  EXPECT_FALSE(describe().settings.contains("channel_size"));
  job.ddp.hook("quantize_per_channel");
  EXPECT_EQ(describe().settings["channel_size"], 512);
  job.ddp.channel_size(100);
  EXPECT_EQ(describe().settings["channel_size"], 100);
}

TEST_F(JobSettingsTest, LeaveOutWhatMayChange) {
  const nlohmann::json one = describe().settings;
  job.checkpoints = {.folder = "x", .every = 7, .keep = 3, .resume = true, .resume_from = "y"};
  job.training.log_every = 3;
  job.training.eval_batches = 5;
  job.version = "9";
  EXPECT_EQ(describe(3).settings, one);
  EXPECT_EQ(describe(3).circumstances["ranks"], 3);
  EXPECT_EQ(describe(3).circumstances["version"], "9");
  EXPECT_GE(describe().circumstances["threads"], 1);
  job.training.learning_rate.schedule = training::Schedule::kConstant;
  EXPECT_FALSE(describe().settings.contains("steps"));
}

}  // namespace
}  // namespace narrowcast::job
