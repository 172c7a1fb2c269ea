#include "trainer/train/job/verification_job.h"
#include "trainer/train/job/train_job.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include <narrowcast/hooks.h>
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::job {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JobOutcome;
using ::testing::Not;
using testing::run_agreed;
using testing::small_job;
using testing::TemporaryFolder;

std::vector<JobOutcome> verify(const TrainJob& job, int64_t world_size) {
  return run_agreed(job, world_size, run_verification_job);
}

TrainJob verification_of(TrainJob job, const std::string& model) {
  job.model = model;
  job.verification = verification::VerificationOptions{.hooks = hooks::comm_hook_names(),
                                                       .dump_folder = "",
                                                       .tolerance_scale = 1,
                                                       .reference_task = model == "ddp_comm_hook_task"};
  if (job.verification->reference_task) {
    job.model_options = {};
  }
  return job;
}

TEST(VerificationJob, ReferenceTaskHasSixCases) {
  const TemporaryFolder folder;
  const auto outcomes = verify(verification_of(small_job(folder), "ddp_comm_hook_task"), 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess);
  EXPECT_EQ(outcomes[1].exit_code, program::kSuccess);
  EXPECT_THAT(outcomes[1].results, IsEmpty());
  for (const char* text : {"allreduce", "fp16_compress", "quantize_per_tensor", "quantize_per_channel", "noop",
                           "is_last: set for the last of"}) {
    EXPECT_THAT(outcomes[0].results, HasSubstr(text));
  }
  EXPECT_THAT(outcomes[0].results, Not(HasSubstr("FAIL")));
}

TEST(VerificationJob, OtherModelsUseTheirData) {
  const TemporaryFolder folder;
  const auto outcomes = verify(verification_of(small_job(folder), "char_gpt"), 3);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess) << outcomes[0].results;
  EXPECT_THAT(outcomes[0].results, Not(HasSubstr("is_last")));
}

TEST(VerificationJob, UnequalSharesHaveTheirRows) {
  const TemporaryFolder folder;
  TrainJob job = verification_of(small_job(folder), "char_gpt");
  job.training.shares = data::parse_shares("1,5");
  const auto outcomes = verify(job, 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess) << outcomes[0].results;
  EXPECT_THAT(outcomes[0].results, HasSubstr("int8.shares"));
  EXPECT_THAT(outcomes[0].results, HasSubstr("none.shares"));
}

// Each hook's passes draw the same dropout. There is one rank, because ranks on threads share one generator.
TEST(VerificationJob, AModulesDropoutIsTheSameForAllHooks) {
  const TemporaryFolder folder;
  TrainJob job = testing::module_job(folder);
  const auto outcomes = verify(verification_of(job, job.model), 1);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess) << outcomes[0].results;
}

TEST(VerificationJob, AFailIsAnExitCodeOnAllRanks) {
  const TemporaryFolder folder;
  TrainJob job = verification_of(small_job(folder), "char_gpt");
  job.verification->tolerance_scale = 1e-3;
  for (const JobOutcome& outcome : verify(job, 2)) {
    EXPECT_EQ(outcome.exit_code, program::kCheckFailed);
  }
}

TEST(CheckVerificationJob, RefusesWhatCannotBeVerified) {
  const TemporaryFolder folder;
  TrainJob job = verification_of(small_job(folder), "char_gpt");
  check_verification_job(job, 3);
  EXPECT_THROW(check_verification_job(job, 4), c10::ValueError);
  job.training.shares = data::parse_shares("4,2");
  check_verification_job(job, 2);
  EXPECT_THROW(check_verification_job(job, 3), c10::ValueError);
  job.training.shares = data::parse_shares("auto");
  EXPECT_THROW(check_verification_job(job, 2), c10::ValueError);
  job.training.shares = {};
  job.verification->tolerance_scale = -1;
  EXPECT_THROW(check_verification_job(job, 3), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast::job
