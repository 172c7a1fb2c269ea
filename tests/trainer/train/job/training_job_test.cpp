#include "trainer/train/job/training_job.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/safetensors.h"
#include "trainer/train/files/script_file.h"
#include "trainer/train/reporting/metrics.h"

namespace narrowcast::job {
namespace {

using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JobOutcome;
using ::testing::MatchesRegex;
using testing::run_agreed;
using testing::small_job;
using ::testing::StartsWith;
using testing::TemporaryFolder;

TEST(CheckOutput, KeepsFilesOfAnEarlierTraining) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder / "run";
  EXPECT_NO_THROW(check_output(job));
  folder.write("run/metrics.jsonl", "{}");
  EXPECT_THAT(error_message<c10::ValueError>([&] { check_output(job); }), HasSubstr("metrics.jsonl exists already"));
  job.checkpoints.resume = true;
  EXPECT_NO_THROW(check_output(job)) << "it may be this job's own";
  job.checkpoints.resume = false;
  job.output.overwrite = true;
  EXPECT_NO_THROW(check_output(job));
}

TEST(PreparePlaces, FailsOnAllRanksAlike) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder.write("file", "") + "/run";
  run_agreed(job, 2, [](const AgreedJob& agreed) {
    EXPECT_THAT(error_message<c10::ValueError>([&] { prepare_places(agreed); }),
                HasSubstr("rank 0: output_dir: cannot create folder"));
    return 0;
  });
}

TEST(PrepareOutput, FailsOnAllRanksAlike) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder / "none";
  run_agreed(job, 2, [](const AgreedJob& agreed) {
    EXPECT_THAT(error_message<c10::ValueError>([&] { prepare_output(agreed, {}); }),
                MatchesRegex("rank 0: .*metrics.jsonl: cannot be written: No such file or directory"));
    return 0;
  });
}

// If any of the places cannot be written, the files and checkpoints of an earlier training stay unchanged.
TEST(TrainingJob, RemovesNothingWhereItCannotWrite) {
  const TemporaryFolder folder;
  TrainJob job = testing::module_job(folder);
  job.output.folder = folder / "run";
  job.output.overwrite = true;
  job.checkpoints = {.folder = folder / "checkpoints", .every = 2};
  const std::string manifest = folder.write("checkpoints/step-00000002/manifest.json", "old");
  const std::string metrics = folder.write("run/metrics.jsonl", "old");
  folder.write("file", "");
  folder.write("taken/model.pt/x", "");
  folder.write("full/model.safetensors/x", "");
  folder.write("linked/x", "");
  std::filesystem::create_symlink("x", folder / "linked/metrics.jsonl");
  const OutputOptions writable = job.output;
  const auto expect_kept = [&](OutputOptions output, const std::string& reason) {
    job.output = std::move(output);
    run_agreed(job, 2, [&](const AgreedJob& agreed) {
      EXPECT_THAT(error_message<c10::ValueError>([&] { run_training_job(agreed); }),
                  AllOf(StartsWith("rank 0: "), HasSubstr(reason)));
      return 0;
    });
    EXPECT_EQ(files::read_file(manifest), "old") << reason;
    EXPECT_EQ(files::read_file(metrics), "old") << reason;
    job.output = writable;
  };
  const auto with = [&](std::string OutputOptions::*member, const std::string& path) {
    OutputOptions output = writable;
    output.*member = folder / path;
    return output;
  };
  expect_kept(with(&OutputOptions::report, "none/x.html"), "report: ");
  expect_kept(with(&OutputOptions::tensorboard_dir, "file/x"), "tensorboard_dir: cannot create folder ");
  expect_kept(with(&OutputOptions::folder, "file"), "output_dir: cannot create folder ");
  expect_kept(with(&OutputOptions::folder, "taken"), "model.pt: cannot be written: Is a directory");
  expect_kept(with(&OutputOptions::folder, "full"), "model.safetensors: cannot be written: Is a directory");
  expect_kept(with(&OutputOptions::folder, "linked"), "metrics.jsonl: cannot be written: it is a symbolic link");
}

TEST(CheckPlaces, MakesNothing) {
  const TemporaryFolder folder;
  folder.write("file", "");
  const auto complaint = [&](OutputOptions output) {
    return error_message<c10::ValueError>([&] { check_places(output); });
  };
  const std::string nothing = "nothing was thrown";
  EXPECT_EQ(complaint({.folder = folder / "a/b", .tensorboard_dir = folder / "c"}), nothing);
  EXPECT_EQ(complaint({.folder = folder / "a/b", .report = folder / "a/b/x.html"}), nothing);
  EXPECT_EQ(complaint({.folder = folder / "a/b/", .report = folder / "a/./x.html"}), nothing);
  EXPECT_EQ(complaint({.tensorboard_dir = folder / "a", .report = folder / "a/x.html"}), nothing);
  EXPECT_THAT(complaint({.folder = folder / "a", .report = folder.path().string()}), HasSubstr("Is a directory"));
  EXPECT_THAT(complaint({.folder = folder / "a", .report = folder / "a/b/x.html"}),
              HasSubstr("report: " + folder / "a/b/x.html" + ": folder "));
  EXPECT_THAT(complaint({.folder = folder / "file/b"}),
              HasSubstr("output_dir: cannot create folder " + folder / "file/b" + ": Not a directory"));
  EXPECT_THAT(complaint({.tensorboard_dir = folder / "file"}), HasSubstr("tensorboard_dir: cannot create folder "));
  EXPECT_THAT(complaint({.prometheus_file = folder / "none/x.prom"}), HasSubstr("prometheus_file: "));
  EXPECT_EQ(folder.entries(), 1);
}

std::vector<JobOutcome> train(const TrainJob& job, int64_t world_size) {
  return run_agreed(job, world_size, run_training_job);
}

TEST(TrainingJob, OnlyRankZeroTalksAndWrites) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder / "deep/run";
  const std::vector<JobOutcome> outcomes = train(job, 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess);
  EXPECT_EQ(outcomes[1].exit_code, program::kSuccess);
  EXPECT_THAT(outcomes[0].results, StartsWith("training loss    "));
  EXPECT_THAT(outcomes[0].results, HasSubstr("replicas         identical on all ranks\nsample:\n"));
  EXPECT_THAT(outcomes[1].results + outcomes[1].progress, IsEmpty());
  EXPECT_EQ(files::load_model(folder / "deep/run/model.safetensors").name, "char_gpt");
}

TEST(TrainingJob, LeavesAModuleAsTwoFiles) {
  const TemporaryFolder folder;
  TrainJob job = testing::module_job(folder);
  job.output.folder = folder / "run";
  const std::vector<JobOutcome> outcomes = train(job, 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess);
  EXPECT_THAT(outcomes[0].results, HasSubstr("\naccuracy         "));
  const files::Safetensors tensors = files::read_safetensors(folder / "run/model.safetensors");
  EXPECT_EQ(tensors.metadata.at("model"), "torchscript");
  EXPECT_EQ(tensors.tensors.size(), 8U);
  const files::SavedScript saved = files::load_script(folder / "run/model.pt");
  EXPECT_FALSE(saved.module.is_training());
  for (const auto& parameter : saved.module.named_parameters()) {
    EXPECT_TRUE(tensors.tensors.at(parameter.name).equal(parameter.value)) << parameter.name;
    EXPECT_TRUE(parameter.value.requires_grad()) << "it can be trained again";
  }
  EXPECT_FALSE(tensors.tensors.at("norm.running_mean").equal(at::zeros({32})));
  std::filesystem::remove(folder / "run/model.safetensors");
  std::filesystem::remove(folder / "run/metrics.jsonl");
  EXPECT_THAT(error_message<c10::ValueError>([&] { check_output(job); }), HasSubstr("model.pt exists already"));
}

// As on a disk that has room for the metrics (about 2 kB) and no room for the model (at least 20 kB).
TEST(TrainingJob, HasNotEndedBeforeItsModelIsSaved) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder / "run";
  run_agreed(job, 1, [](const AgreedJob& agreed) {
    const testing::FileSizeLimit limit(10'000);
    EXPECT_THAT(error_message<OutputError>([&] { run_training_job(agreed); }), HasSubstr("model.safetensors"));
    return 0;
  });
  EXPECT_FALSE(reporting::metrics_have_ended(folder / "run/metrics.jsonl"));
  EXPECT_THAT(files::read_file(folder / "run/metrics.jsonl"), HasSubstr("\"event\":\"evaluation\""));
  train(job, 1);
  EXPECT_TRUE(reporting::metrics_have_ended(folder / "run/metrics.jsonl"));
}

TEST(TrainingJob, SampleHasTheLengthAndCanBeLeftOut) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const std::string text = train(job, 1)[0].results;
  EXPECT_EQ(text.size() - text.find("sample:\n"), 8 + 10 + 1U);
  job.output.sample_length = 0;
  EXPECT_EQ(train(job, 1)[0].results.find("sample:"), std::string::npos);
}

TEST(TrainingJob, SampleHoldsNothingThatATerminalWouldObey) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += i % 2 == 0 ? '\x07' : '\x1b';
  }
  job.data = {folder.write("controls.txt", text)};
  const std::string results = train(job, 1)[0].results;
  EXPECT_THAT(results.substr(results.find("sample:\n")), MatchesRegex("sample:\n(\\\\x(07|1b)){10}\n"));
}

TEST(TrainingJob, NoopLetsReplicasDifferAndSaysSo) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.ddp.hook("noop");
  const std::vector<JobOutcome> outcomes = train(job, 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess);
  EXPECT_THAT(outcomes[0].results, HasSubstr("replicas         differ between ranks"));
}

TEST(TrainingJob, DivergenceIsACheckThatFailed) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.training.optimizer = {.kind = training::OptimizerKind::kSgd, .weight_decay = 0};
  job.training.learning_rate = {.peak = 1e30, .warmup_steps = 0, .schedule = ScheduleKind::kConstant};
  job.training.clip_grad_norm = 0;
  const std::vector<JobOutcome> outcomes = train(job, 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kCheckFailed);
  EXPECT_EQ(outcomes[1].exit_code, program::kCheckFailed);
  EXPECT_THAT(outcomes[0].progress, HasSubstr("the loss is not finite by step 4"));
  EXPECT_THAT(outcomes[0].results, IsEmpty());
}

TEST(CheckTrainingJob, LetsATrainingEndRightAfterExchangesOnly) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.ddp.hook("post_local_sgd");
  job.training.steps = 8;
  job.training.early_stop = 1;
  const auto complaint = [&](int64_t eval_every, int64_t warmup) {
    job.training.eval_every = eval_every;
    job.outer = OuterOptions().sync_every(2).warmup_steps(warmup);
    return error_message<c10::ValueError>([&] { check_training_job(job, 1); });
  };
  EXPECT_EQ(complaint(4, 2), "nothing was thrown");
  EXPECT_EQ(complaint(3, 2),
            "early_stop: needs eval_every and outer_warmup that are multiples of sync_every (2), or the steps after an "
            "exchange would be lost, but they are 3 and 2");
  job.training.steps = 9;
  EXPECT_THAT(complaint(4, 1), HasSubstr("but they are 4 and 1"));
}

TEST(CheckTrainingJob, KeepsEarlierFiles) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder / "run";
  check_training_job(job, 1);
  folder.write("run/metrics.jsonl", "{}");
  EXPECT_THROW(check_training_job(job, 1), c10::ValueError);
  job.output.overwrite = true;
  check_training_job(job, 1);
}

}  // namespace
}  // namespace narrowcast::job
