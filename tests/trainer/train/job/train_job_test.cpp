#include "trainer/train/job/train_job.h"

#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::job {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JobOutcome;
using ::testing::Not;
using testing::run_alone;
using testing::small_job;
using testing::TemporaryFolder;

TEST(MakeInputs, FitsTheModelToTheText) {
  const TemporaryFolder folder;
  const JobInputs inputs = make_inputs(small_job(folder));
  EXPECT_EQ(inputs.model->options()["vocabulary_size"], static_cast<int64_t>(inputs.vocabulary.size()));
  EXPECT_EQ(inputs.model->options()["width"], 16);
  EXPECT_EQ(inputs.unit, "tokens");
  EXPECT_EQ(inputs.units_per_sample, 8);
  EXPECT_EQ(inputs.dataset->training_batch({0}).inputs.size(1), 8);
  EXPECT_NE(inputs.data_name.find("verse.txt"), std::string::npos);
  EXPECT_GT(inputs.bigram_entropy.value(), 0);
}

TEST(MakeInputs, InitialParametersFollowTheSeed) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const at::Tensor first = make_inputs(job).model->parameters()[0];
  EXPECT_TRUE(at::equal(first, make_inputs(job).model->parameters()[0]));
  job.seed = 1;
  EXPECT_FALSE(at::equal(first, make_inputs(job).model->parameters()[0]));
}

TEST(MakeInputs, ReadsTheProjectsOwnTextWithoutData) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.data = {};
  const JobInputs inputs = make_inputs(job);
  EXPECT_GT(inputs.dataset->training_size(), 100'000);
  EXPECT_GT(inputs.vocabulary.size(), 90U);
}

TEST(MakeInputs, ReferenceTaskHasNoData) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.model = "ddp_comm_hook_task";
  job.model_options = {};
  const JobInputs inputs = make_inputs(job);
  EXPECT_EQ(inputs.dataset, nullptr);
  EXPECT_EQ(inputs.model->parameters()[0].numel(), 800);
}

TEST(MakeInputs, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const auto with = [&](auto change) {
    TrainJob job = small_job(folder);
    change(job);
    make_inputs(job);
  };
  EXPECT_THROW(with([](TrainJob& job) { job.seed = -1; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model = "gpt5"; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model_options["hidden"] = 3; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model_options["context"] = 4000; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.data = {"/no/such/file"}; }), c10::ValueError);
  EXPECT_THROW(with([](TrainJob& job) { job.model = "mlp"; }), c10::ValueError);
  EXPECT_THROW(with([&](TrainJob& job) { job.data = {folder.write("bad.txt", "\xff\xfe")}; }), CorruptInputError);
}

TEST(RunJob, Trains) {
  const TemporaryFolder folder;
  const JobOutcome outcome = run_alone(small_job(folder));
  EXPECT_EQ(outcome.exit_code, program::kSuccess);
  EXPECT_THAT(outcome.results, HasSubstr("validation loss"));
  EXPECT_THAT(outcome.progress, HasSubstr("step 4/4"));
}

TEST(RunJob, VerifiesInsteadOfTraining) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.verification = verification::VerificationOptions{.hooks = {"none", "quantize_per_tensor"}};
  const JobOutcome outcome = run_alone(job);
  EXPECT_EQ(outcome.exit_code, program::kSuccess);
  EXPECT_THAT(outcome.results, HasSubstr("quantize_per_tensor"));
  EXPECT_THAT(outcome.progress, IsEmpty());
  job.verification->tolerance_scale = 1e-3;
  EXPECT_EQ(run_alone(job).exit_code, program::kCheckFailed);
}

TEST(RunJob, DryRunPrintsThePlanOfAWorldItDoesNotJoin) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.dry_run = true;
  job.output.folder = folder / "run";
  WorkerEnv env;
  env.world_size = 3;
  EXPECT_THAT(run_alone(job, env).results, HasSubstr("ranks                            3"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  env.rank = 1;
  EXPECT_THAT(run_alone(job, env).results, IsEmpty());
}

TEST(RunJob, ChecksBeforeItReadsOrJoins) {
  const TemporaryFolder folder;
  const auto with = [&](auto change) {
    TrainJob job = small_job(folder);
    job.data = {"/no/such/file"};
    change(job);
    return testing::error_message<c10::ValueError>([&] { run_alone(job); });
  };
  EXPECT_THAT(with([](TrainJob& job) { job.ddp.hook("int3"); }), HasSubstr("known: none, allreduce"));
  EXPECT_THAT(with([](TrainJob& job) { job.ddp.bucket_cap_mb(-1); }), HasSubstr("bucket_cap_mb"));
  EXPECT_THAT(with([](TrainJob& job) { job.training.steps = 0; }), HasSubstr("steps"));
  EXPECT_THAT(with([](TrainJob& job) { job.threads = -1; }), HasSubstr("threads"));
  EXPECT_THAT(with([](TrainJob& job) { job.output.sample_length = -1; }), HasSubstr("sample_length"));
  EXPECT_THAT(with([](TrainJob&) {}), HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace narrowcast::job
