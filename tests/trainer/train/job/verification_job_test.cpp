#include "trainer/train/job/verification_job.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include <narrowcast/hooks.h>
#include "tests/support/ranks.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/job/plan.h"

namespace narrowcast::job {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::run_ranks;
using testing::small_job;
using testing::TemporaryFolder;

// Exit code and results by rank.
std::vector<std::pair<int, std::string>> verify(const TrainJob& job, int64_t world_size) {
  std::vector<std::pair<int, std::string>> outcomes(static_cast<size_t>(world_size));
  std::vector<JobInputs> inputs;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    inputs.push_back(make_inputs(job));
  }
  const nlohmann::json plan = make_plan(job, inputs[0], world_size);
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::ostringstream results;
    WorkerEnv env;
    env.rank = rank;
    const JobContext context = {
        .env = env, .session = {}, .results = results, .progress = results, .progress_is_terminal = false};
    const int exit_code = run_verification_job({job, inputs[rank], plan, group, context});
    outcomes[rank] = {exit_code, results.str()};
  });
  return outcomes;
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
  EXPECT_EQ(outcomes[0].first, program::kSuccess);
  EXPECT_EQ(outcomes[1].first, program::kSuccess);
  EXPECT_THAT(outcomes[1].second, IsEmpty());
  for (const char* text : {"allreduce", "fp16_compress", "quantize_per_tensor", "quantize_per_channel", "noop",
                           "is_last: set for the last of"}) {
    EXPECT_THAT(outcomes[0].second, HasSubstr(text));
  }
  EXPECT_THAT(outcomes[0].second, Not(HasSubstr("FAIL")));
}

TEST(VerificationJob, OtherModelsUseTheirData) {
  const TemporaryFolder folder;
  const auto outcomes = verify(verification_of(small_job(folder), "char_gpt"), 3);
  EXPECT_EQ(outcomes[0].first, program::kSuccess) << outcomes[0].second;
  EXPECT_THAT(outcomes[0].second, Not(HasSubstr("is_last")));
}

TEST(VerificationJob, AFailIsAnExitCodeOnAllRanks) {
  const TemporaryFolder folder;
  TrainJob job = verification_of(small_job(folder), "char_gpt");
  job.verification->tolerance_scale = 1e-3;
  for (const auto& [exit_code, text] : verify(job, 2)) {
    EXPECT_EQ(exit_code, program::kCheckFailed);
  }
}

TEST(CheckVerificationJob, RefusesWhatCannotBeVerified) {
  const TemporaryFolder folder;
  TrainJob job = verification_of(small_job(folder), "char_gpt");
  check_verification_job(job, 3);
  EXPECT_THROW(check_verification_job(job, 4), c10::ValueError);
  job.verification->tolerance_scale = -1;
  EXPECT_THROW(check_verification_job(job, 3), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast::job
