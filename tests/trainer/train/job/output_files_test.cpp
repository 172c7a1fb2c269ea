#include "trainer/train/job/output_files.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train/job/small_job.h"

namespace narrowcast::job {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::small_job;
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
  job.output.sample_length = -1;
  EXPECT_THROW(check_output(job), c10::ValueError);
}

TEST(PrepareOutput, FailsOnAllRanksAlike) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder.write("file", "") + "/run";
  const JobInputs inputs = make_inputs(job);
  const nlohmann::json plan = make_plan(job, inputs, 2);
  testing::run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::ostringstream out;
    WorkerEnv env;
    env.rank = rank;
    env.world_size = 2;
    const JobContext context = {
        .env = env, .session = {}, .results = out, .progress = out, .progress_is_terminal = false};
    EXPECT_THAT(error_message<c10::ValueError>([&] {
                  prepare_output({job, inputs, plan, group, context}, {});
                }),
                HasSubstr("rank 0: output_dir: cannot make folder"));
  });
}

}  // namespace
}  // namespace narrowcast::job
