#include "trainer/train/job/training_job.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/job/plan.h"

namespace narrowcast::job {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using testing::run_ranks;
using testing::small_job;
using ::testing::StartsWith;
using testing::TemporaryFolder;

struct TrainingOutcome {
  int exit_code = -1;
  std::ostringstream results;
  std::ostringstream progress;
};

std::vector<TrainingOutcome> train(const TrainJob& job, int64_t world_size) {
  std::vector<TrainingOutcome> outcomes(static_cast<size_t>(world_size));
  std::vector<JobInputs> inputs;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    inputs.push_back(make_inputs(job));
  }
  const nlohmann::json plan = make_plan(job, inputs[0], world_size);
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    WorkerEnv env;
    env.rank = rank;
    env.world_size = world_size;
    const JobContext context = {.env = env,
                                .session = {},
                                .results = outcomes[rank].results,
                                .progress = outcomes[rank].progress,
                                .progress_is_terminal = false};
    outcomes[rank].exit_code = run_training_job({job, inputs[rank], plan, group, context});
  });
  return outcomes;
}

TEST(TrainingJob, OnlyRankZeroTalksAndWrites) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder / "deep/run";
  const std::vector<TrainingOutcome> outcomes = train(job, 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess);
  EXPECT_EQ(outcomes[1].exit_code, program::kSuccess);
  EXPECT_THAT(outcomes[0].results.str(), StartsWith("training loss    "));
  EXPECT_THAT(outcomes[0].results.str(), HasSubstr("replicas         identical on all ranks\nsample:\n"));
  EXPECT_THAT(outcomes[1].results.str() + outcomes[1].progress.str(), IsEmpty());
  EXPECT_EQ(files::load_model(folder / "deep/run/model.safetensors").name, "char_gpt");
}

TEST(TrainingJob, SampleHasTheLengthAndCanBeLeftOut) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const std::string text = train(job, 1)[0].results.str();
  EXPECT_EQ(text.size() - text.find("sample:\n"), 8 + 10 + 1U);
  job.output.sample_length = 0;
  EXPECT_EQ(train(job, 1)[0].results.str().find("sample:"), std::string::npos);
}

TEST(TrainingJob, SampleHoldsNothingThatATerminalWouldObey) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += i % 2 == 0 ? '\x07' : '\x1b';
  }
  job.data = {folder.write("controls.txt", text)};
  const std::string results = train(job, 1)[0].results.str();
  EXPECT_THAT(results.substr(results.find("sample:\n")), MatchesRegex("sample:\n(\\\\x(07|1b)){10}\n"));
}

TEST(TrainingJob, NoopLetsReplicasDifferAndSaysSo) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.ddp.hook("noop");
  const std::vector<TrainingOutcome> outcomes = train(job, 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kSuccess);
  EXPECT_THAT(outcomes[0].results.str(), HasSubstr("replicas         differ between ranks"));
}

TEST(TrainingJob, DivergenceIsACheckThatFailed) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.training.optimizer = {.kind = training::OptimizerKind::kSgd, .weight_decay = 0};
  job.training.learning_rate = {.peak = 1e30, .warmup_steps = 0, .schedule = training::Schedule::kConstant};
  job.training.clip_grad_norm = 0;
  const std::vector<TrainingOutcome> outcomes = train(job, 2);
  EXPECT_EQ(outcomes[0].exit_code, program::kCheckFailed);
  EXPECT_EQ(outcomes[1].exit_code, program::kCheckFailed);
  EXPECT_THAT(outcomes[0].progress.str(), HasSubstr("the loss is not finite by step 4"));
  EXPECT_THAT(outcomes[0].results.str(), IsEmpty());
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
