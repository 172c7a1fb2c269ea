#include "trainer/train/job/run_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "tests/support/error_message.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::job {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::small_job;
using testing::TemporaryFolder;

struct Outcome {
  int exit_code = -1;
  std::string results;
  std::string progress;
};

// As a process alone.
Outcome run(const TrainJob& job, const WorkerEnv& env = {}) {
  std::ostringstream results;
  std::ostringstream progress;
  const int exit_code = run_job(
      job, {.env = env, .session = {}, .results = results, .progress = progress, .progress_is_terminal = false});
  return {exit_code, results.str(), progress.str()};
}

TEST(RunJob, Trains) {
  const TemporaryFolder folder;
  const Outcome outcome = run(small_job(folder));
  EXPECT_EQ(outcome.exit_code, program::kSuccess);
  EXPECT_THAT(outcome.results, HasSubstr("validation loss"));
  EXPECT_THAT(outcome.progress, HasSubstr("step 4/4"));
}

TEST(RunJob, VerifiesInsteadOfTraining) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.verification = verification::VerificationOptions{.hooks = {"none", "quantize_per_tensor"}};
  const Outcome outcome = run(job);
  EXPECT_EQ(outcome.exit_code, program::kSuccess);
  EXPECT_THAT(outcome.results, HasSubstr("quantize_per_tensor"));
  EXPECT_THAT(outcome.progress, IsEmpty());
  job.verification->tolerance_scale = 1e-3;
  EXPECT_EQ(run(job).exit_code, program::kCheckFailed);
}

TEST(RunJob, DryRunPrintsThePlanOfAWorldItDoesNotJoin) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.dry_run = true;
  job.output.folder = folder / "run";
  WorkerEnv env;
  env.world_size = 3;
  EXPECT_THAT(run(job, env).results, HasSubstr("ranks                            3"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  env.rank = 1;
  EXPECT_THAT(run(job, env).results, IsEmpty());
}

TEST(RunJob, ChecksBeforeItReadsOrJoins) {
  const TemporaryFolder folder;
  const auto with = [&](auto change) {
    TrainJob job = small_job(folder);
    job.data = {"/no/such/file"};
    change(job);
    return testing::error_message<c10::ValueError>([&] { run(job); });
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
