#include "trainer/train/job/training_job.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/trainer/train/job/job_checkpoints.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/job/plan.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {
namespace {

using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using testing::JobCheckpointsTest;
using ::testing::Not;
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

TEST_F(JobSettingsTest, SayWhereTheSizeOfBucketsIsChosen) {
  job.ddp.bucket_cap_mb(std::nullopt);
  EXPECT_EQ(describe().settings["bucket_cap_mb"], "auto");
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
  job.training.learning_rate.schedule = ScheduleKind::kConstant;
  EXPECT_FALSE(describe().settings.contains("steps"));
}

// Another number of ranks sends other bytes, and may still resume.
TEST_F(JobSettingsTest, LeaveOutWhatIsSent) {
  for (const std::string hook : {"int8", "power_sgd", "batched_power_sgd"}) {
    job.ddp.hook(hook);
    EXPECT_EQ(describe(1).settings, describe(3).settings) << hook;
  }
}

TEST_F(JobCheckpointsTest, TheSameJobStartsAndResumes) {
  EXPECT_THAT(run(), HasSubstr("starts a new training: there is no checkpoint in " + checkpoints));
  const std::string whole = model();
  lose_step_4();
  EXPECT_THAT(run(), AllOf(HasSubstr("resumes from " + checkpoints + "/step-00000002, step 2 of 4\n"),
                           Not(HasSubstr("warning"))));
  EXPECT_EQ(model(), whole);
  EXPECT_THAT(run(), HasSubstr("step 4 of 4")) << "nothing is left to train";
  EXPECT_EQ(model(), whole);
}

// A module with batch norms and dropout; its file may have moved.
class ModuleCheckpointsTest : public JobCheckpointsTest {
 protected:
  ModuleCheckpointsTest() {
    const TrainJob module = testing::module_job(folder);
    job.model = module.model;
    job.model_options = {};
    job.loss = module.loss;
    job.data = module.data;
  }
};

TEST_F(ModuleCheckpointsTest, ResumesToTheBit) {
  run();
  const std::string whole = model();
  const std::string printed = results.substr(0, results.find("sent per rank"));
  EXPECT_THAT(printed, HasSubstr("accuracy  "));
  lose_step_4();
  std::filesystem::rename(job.model, folder / "moved.pt");
  job.model = folder / "moved.pt";
  EXPECT_THAT(run(), AllOf(HasSubstr("step 2 of 4\n"), Not(HasSubstr("warning"))));
  EXPECT_EQ(model(), whole);
  EXPECT_THAT(results, HasSubstr(printed));
  EXPECT_THAT(run(), HasSubstr("step 4 of 4"));
  EXPECT_THAT(results, HasSubstr(printed)) << "also of an evaluation before the interruption";
}

TEST_F(ModuleCheckpointsTest, RefuseAnotherModule) {
  run();
  torch::jit::Module other = testing::digit_net();
  other.attr("first").toModule().attr("bias").toTensor().detach().fill_(1);
  other.save(job.model);
  EXPECT_THAT(complaint(), AllOf(HasSubstr("model_hash: is "), HasSubstr(" in the checkpoint " + checkpoints)));
  const TrainJob gpt = small_job(folder);
  job.model = gpt.model;
  job.model_options = gpt.model_options;
  job.loss = "";
  job.data = gpt.data;
  EXPECT_THAT(complaint(), HasSubstr("the checkpoint " + checkpoints));
}

TEST_F(JobCheckpointsTest, MetricsContinueWithoutDoubles) {
  job.training.log_every = 1;
  run();
  lose_step_4();
  run();
  std::istringstream lines(files::read_file(folder / "run/metrics.jsonl"));
  std::string events;
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    events += object["event"].get<std::string>() + object.value("step", nlohmann::json("")).dump() + " ";
  }
  EXPECT_EQ(events, "start\"\" step1 step2 checkpoint2 resume2 step3 step4 evaluation4 checkpoint4 end\"\" ");
}

TEST_F(JobCheckpointsTest, SkipsADamagedOneButNotAll) {
  run();
  const std::string whole = model();
  folder.write("checkpoints/step-00000004/replica.safetensors", "damaged");
  EXPECT_THAT(run(), AllOf(HasSubstr("warning: skips the checkpoint of step 4: " + checkpoints + "/step-00000004/"),
                           HasSubstr("resumes from " + checkpoints + "/step-00000002")));
  EXPECT_EQ(model(), whole);
  for (const char* step : {"2", "4"}) {
    folder.write("checkpoints/step-0000000" + std::string(step) + "/manifest.json", "{}");
  }
  EXPECT_THAT(error_message<CorruptInputError>([&] { run(); }), HasSubstr("none of its 2 checkpoints is valid"));
}

TEST_F(JobCheckpointsTest, OtherSettingsAreNamedWithBothValues) {
  run();
  job.seed = 5;
  EXPECT_EQ(complaint(), "seed: is 5, but 0 in the checkpoint " + checkpoints + "/step-00000004");
  job.seed = 0;
  job.ddp.hook("int8");
  EXPECT_THAT(complaint(), HasSubstr("hook: is int8, but none in the checkpoint "));
  job.ddp.hook("none");
  job.model_options["width"] = 32;
  EXPECT_THAT(complaint(), HasSubstr("but"));
  job.model_options["width"] = 16;
  job.training.steps = 8;
  EXPECT_THAT(complaint(), HasSubstr("steps: is 8, but 4 in the checkpoint"));
}

// An IDX file of `sizes`, whose bytes are `byte`.
std::string idx_of(const std::vector<uint8_t>& sizes, char byte) {
  std::string file = {0, 0, 8, static_cast<char>(sizes.size())};
  size_t bytes = 1;
  for (const uint8_t size : sizes) {
    file += {0, 0, 0, static_cast<char>(size)};
    bytes *= size;
  }
  return file + std::string(bytes, byte);
}

TEST_F(JobCheckpointsTest, OtherDataUnderTheSameNameIsAnotherTraining) {
  folder.write("images/train-images-idx3-ubyte", idx_of({20, 2, 3}, 5));
  folder.write("images/train-labels-idx1-ubyte", idx_of({20}, 1));
  folder.write("images/t10k-images-idx3-ubyte", idx_of({10, 2, 3}, 5));
  folder.write("images/t10k-labels-idx1-ubyte", idx_of({10}, 1));
  job.model = "mlp";
  job.model_options = {{"layers", 1}, {"hidden", 4}};
  job.data = {folder / "images"};
  run();
  std::filesystem::rename(folder / "images", folder / "moved");
  job.data = {folder / "moved"};
  EXPECT_THAT(run(), HasSubstr("step 4 of 4"));
  for (const auto& [name, sizes] : std::vector<std::pair<std::string, std::vector<uint8_t>>>{
           {"train-images-idx3-ubyte", {20, 2, 3}}, {"t10k-labels-idx1-ubyte", {10}}}) {
    std::string other = idx_of(sizes, name[0] == 't' && name[1] == 'r' ? 5 : 1);
    const std::string whole = other;
    other.back() = 2;
    folder.write("moved/" + name, other);
    EXPECT_THAT(complaint(), AllOf(HasSubstr("data_hash: is "), HasSubstr(" in the checkpoint "))) << name;
    folder.write("moved/" + name, whole);
  }
  EXPECT_THAT(run(), HasSubstr("step 4 of 4"));
}

TEST_F(JobCheckpointsTest, OlderOnesWithoutAHashOfTheDataCanBeResumed) {
  run();
  const std::string whole = model();
  lose_step_4();
  forget_setting("data_hash");
  EXPECT_THAT(run(), AllOf(HasSubstr("step 2 of 4\n"), Not(HasSubstr("warning"))));
  EXPECT_EQ(model(), whole);
  lose_step_4();
  forget_setting("optimizer");
  EXPECT_THAT(complaint(), HasSubstr("optimizer: is adamw, but the checkpoint "));
}

TEST_F(JobCheckpointsTest, OlderOnesHaveChannelsOf512) {
  job.ddp.hook("quantize_per_channel");
  run();
  const std::string whole = model();
  lose_step_4();
  forget_setting("channel_size");
  job.ddp.channel_size(100);
  EXPECT_EQ(complaint(), "channel_size: is 100, but 512 in the checkpoint " + checkpoints + "/step-00000002");
  job.ddp.channel_size(512);
  EXPECT_THAT(run(), AllOf(HasSubstr("step 2 of 4\n"), Not(HasSubstr("warning"))));
  EXPECT_EQ(model(), whole);
}

TEST_F(JobCheckpointsTest, OlderOnesHaveOuterErrorsWithoutDecay) {
  job.ddp.hook("post_local_sgd");
  job.outer = OuterOptions().sync_every(2).wire({.format = WireFormat::kInt8B128, .error_feedback = true});
  run();
  const std::string whole = model();
  lose_step_4();
  forget_setting("outer_error_decay");
  job.outer->error_decay(0.5);
  EXPECT_EQ(complaint(), "outer_error_decay: is 0.5, but 1.0 in the checkpoint " + checkpoints + "/step-00000002");
  job.outer->error_decay(std::nullopt);
  EXPECT_THAT(run(), AllOf(HasSubstr("step 2 of 4\n"), Not(HasSubstr("warning"))));
  EXPECT_EQ(model(), whole);
}

TEST_F(JobCheckpointsTest, BucketsOfAnySizeWillDoWhereTheSizeIsLeftOpen) {
  job.ddp.bucket_cap_mb(3);
  run();
  const std::string whole = model();
  lose_step_4();
  job.ddp.bucket_cap_mb(std::nullopt);
  EXPECT_THAT(run(), AllOf(HasSubstr("step 2 of 4\n"), Not(HasSubstr("warning"))));
  EXPECT_EQ(model(), whole);
  job.ddp.bucket_cap_mb(3);
  EXPECT_EQ(complaint(), "bucket_cap_mb: is 3.0, but auto in the checkpoint " + checkpoints + "/step-00000004");
}

TEST_F(JobCheckpointsTest, ManyThingsMayChange) {
  job.training.learning_rate.schedule = ScheduleKind::kConstant;
  job.training.learning_rate.warmup_steps = 1;
  run();
  job.training.steps = 6;
  job.training.log_every = 3;
  job.training.eval_every = 2;
  job.training.accumulation_steps = 2;
  EXPECT_THAT(
      run(),
      AllOf(
          HasSubstr("step 4 of 6"),
          HasSubstr("results will not be bit-identical to an uninterrupted training: accumulation_steps (2, was 1)")));
  job.training.steps = 3;
  EXPECT_THAT(complaint(), HasSubstr("steps: is 3, but the checkpoint " + checkpoints + "/step-00000006 is of step 6"));
}

TEST_F(JobCheckpointsTest, WithoutResumeExistingOnesAreRefusedOrReplaced) {
  run();
  job.checkpoints.resume = false;
  job.output.folder = "";
  EXPECT_THAT(complaint(), HasSubstr("holds checkpoints already, the newest of step 4; --resume resumes from it"));
  job.output.overwrite = true;
  job.checkpoints.resume_from = checkpoints + "/step-00000002";
  EXPECT_THAT(complaint(), HasSubstr("resume_from: lies in checkpoint_dir"));
  job.checkpoints.resume_from = folder / "none";
  EXPECT_THROW(run(), CorruptInputError);
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step-00000004")) << "there is nothing to replace it";
  job.checkpoints.resume_from = "";
  job.training.steps = 2;
  run();
  EXPECT_FALSE(std::filesystem::exists(checkpoints + "/step-00000004"));
}

TEST_F(JobCheckpointsTest, ResumesFromTheOneThatIsNamed) {
  run();
  const std::string whole = model();
  job.checkpoints = {.folder = folder / "fork", .resume = true, .resume_from = checkpoints + "/step-00000002"};
  job.output.folder = folder / "fork-run";
  EXPECT_THAT(run(), HasSubstr("resumes from " + checkpoints + "/step-00000002"));
  EXPECT_EQ(files::read_file(folder / "fork-run/model.safetensors"), whole);
  EXPECT_THAT(run(), HasSubstr("resumes from " + folder / "fork/step-00000004"));
  job.checkpoints = {.resume_from = folder / "none"};
  job.output.folder = "";
  EXPECT_THAT(error_message<CorruptInputError>([&] { run(); }), HasSubstr(folder / "none/manifest.json"));
}

// A job that ended before its first checkpoint starts anew and overwrites its former output.
TEST_F(JobCheckpointsTest, FilesOfAFinishedTrainingAreKept) {
  folder.write("run/metrics.jsonl", "{\"event\":\"start\"}\n");
  run();
  std::filesystem::remove_all(checkpoints);
  EXPECT_THAT(complaint(), HasSubstr("model.safetensors exists already"));
  std::filesystem::remove(folder / "run/model.safetensors");
  EXPECT_THAT(complaint(), HasSubstr("metrics.jsonl exists already"));
}

TEST_F(JobCheckpointsTest, DryRunSaysFromWhichItWouldResume) {
  job.dry_run = true;
  run();
  EXPECT_THAT(results, HasSubstr("goes_on_from                     nothing\n"));
  EXPECT_FALSE(std::filesystem::exists(checkpoints));
  job.dry_run = false;
  run();
  job.dry_run = true;
  folder.write("checkpoints/step-00000004/manifest.json", "");
  EXPECT_THAT(run(), HasSubstr("warning: skips the checkpoint of step 4"));
  EXPECT_THAT(results, HasSubstr(checkpoints + "/step-00000002, step 2 of 4\n"));
  job.seed = 1;
  EXPECT_THAT(complaint(), HasSubstr("seed: is 1, but 0"));
}

TEST_F(JobCheckpointsTest, RefusesValuesOutOfRange) {
  job.checkpoints.every = 0;
  EXPECT_EQ(complaint(), "checkpoint_every: must be at least 1, but is 0");
  job.checkpoints = {.folder = checkpoints, .keep = -1};
  EXPECT_EQ(complaint(), "keep_checkpoints: must be at least 0, but is -1");
  job.checkpoints = {.resume = true};
  EXPECT_THAT(complaint(), HasSubstr("resume: needs checkpoint_dir"));
}

}  // namespace
}  // namespace narrowcast::job
