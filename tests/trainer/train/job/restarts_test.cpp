#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/job/restarts.h"
#include "trainer/train/job/training_job.h"

namespace narrowcast::job {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::small_job;
using testing::TemporaryFolder;

WorkerEnv restart_of(const std::string& run) {
  WorkerEnv env;
  env.restart_count = 1;
  env.run_id = run;
  return env;
}

// A restart does not replace output of a finished training or of another run.
TEST(CheckOutput, ARestartMayReplaceWhatItsOwnFormerStartLeft) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.output.folder = folder / "run";
  const auto is_refused = [&](const std::string& lines, const WorkerEnv& env) {
    folder.write("run/metrics.jsonl", lines);
    return error_message<c10::ValueError>([&] { check_output(as_restarted(job, env)); })
        .ends_with("metrics.jsonl exists already; --overwrite replaces it");
  };
  const std::string own = R"({"event": "start", "run_id": "own"})";
  EXPECT_FALSE(is_refused(own, restart_of("own")));
  EXPECT_TRUE(is_refused(own, restart_of("another")));
  EXPECT_TRUE(is_refused(own, restart_of("")));
  EXPECT_TRUE(is_refused(R"({"event": "start", "run_id": "none"})", restart_of("none"))) << "that is no name";
  EXPECT_TRUE(is_refused(own + "\n{\"event\": \"end\"}", restart_of("own")));
  WorkerEnv first = restart_of("own");
  first.restart_count = 0;
  EXPECT_TRUE(is_refused(own, first));
  folder.write("run/model.safetensors", "");
  EXPECT_THAT(error_message<c10::ValueError>([&] { check_output(as_restarted(job, restart_of("own"))); }),
              HasSubstr("model.safetensors exists already"));
}

TEST(AsRestarted, ResumesFromCheckpointsOfTheSameRunAlone) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.checkpoints.folder = folder / "checkpoints";
  EXPECT_FALSE(as_restarted(job, restart_of("own")).checkpoints.resume) << "there is none";
  folder.write("checkpoints/step-00000002/manifest.json",
               checkpoint::format_manifest(
                   checkpoint::Manifest{.step = 2,
                                        .world_size = 1,
                                        .files = {{"replica.safetensors", {}}, {"rank-00000.safetensors", {}}},
                                        .settings = nlohmann::json::object(),
                                        .circumstances = nlohmann::json::object(),
                                        .training = nlohmann::json::object(),
                                        .run_id = "own"}));
  EXPECT_TRUE(as_restarted(job, restart_of("own")).checkpoints.resume);
  EXPECT_FALSE(as_restarted(job, restart_of("another")).checkpoints.resume);
  WorkerEnv first = restart_of("own");
  first.restart_count = 0;
  EXPECT_FALSE(as_restarted(job, first).checkpoints.resume);
}

// The launcher learns it from the error file of the rank that it sees end first.
TEST(ReportDivergence, TellsTheLauncherThatARestartWouldDivergeToo) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.training.optimizer = {.kind = training::OptimizerKind::kSgd, .weight_decay = 0};
  job.training.learning_rate = {.peak = 1e30, .warmup_steps = 0, .schedule = ScheduleKind::kConstant};
  job.training.clip_grad_norm = 0;
  WorkerEnv env;
  env.error_file = folder / "error.json";
  EXPECT_EQ(testing::run_alone(job, env).exit_code, program::kCheckFailed);
  const program::WorkerError told = program::read_error_file(env.error_file);
  EXPECT_TRUE(told.is_final);
  EXPECT_THAT(told.message, HasSubstr("the loss is not finite by step 4"));
}

training::SurvivingState after_step(int64_t step) {
  training::SurvivingState state;
  state.content.step = step;
  return state;
}

// Attempts of a rank that joined the others, and lost one each time.
struct Attempts {
  std::vector<int64_t> restart_counts = {};

  Attempt lose(int64_t losses, const std::function<void(InPlaceRecovery&)>& body = {}) {
    return [this, losses, body](InPlaceRecovery& recovery, const WorkerEnv& env) {
      recovery.has_joined = true;
      restart_counts.push_back(env.restart_count);
      if (body) body(recovery);
      TORCH_CHECK_WITH(DistBackendError, std::ssize(restart_counts) > losses, "rank 0: rank 1 is lost");
      return 7;
    };
  }
};

TEST(RunUntilNothingIsLost, TriesAgainWithTheNextRestartCount) {
  Attempts attempts;
  EXPECT_EQ(run_until_nothing_is_lost(restart_of("own"), attempts.lose(2)), 7);
  EXPECT_THAT(attempts.restart_counts, ::testing::ElementsAre(1, 2, 3));
}

TEST(RunUntilNothingIsLost, KeepsWhatSurvivesUntilTheNextAttempt) {
  Attempts attempts;
  std::vector<int64_t> steps;
  run_until_nothing_is_lost(restart_of("own"), attempts.lose(2, [&](InPlaceRecovery& recovery) {
    steps.push_back(recovery.surviving ? recovery.surviving->content.step : -1);
    if (steps.size() == 1) recovery.surviving = after_step(5);
  }));
  EXPECT_THAT(steps, ::testing::ElementsAre(-1, 5, 5));
}

TEST(RunUntilNothingIsLost, LossesWithoutAStepInBetweenEnd) {
  Attempts attempts;
  EXPECT_THROW(run_until_nothing_is_lost(restart_of("own"), attempts.lose(1000)), c10::DistBackendError);
  EXPECT_EQ(std::ssize(attempts.restart_counts), kMostFruitless + 1);
  Attempts with_steps;
  int64_t step = 0;
  EXPECT_EQ(run_until_nothing_is_lost(restart_of("own"), with_steps.lose(3 * kMostFruitless,
                                                                         [&](InPlaceRecovery& recovery) {
                                                                           recovery.surviving = after_step(++step);
                                                                         })),
            7);
}

// The ranks have not met, another rank hangs, or it is no loss.
TEST(RunUntilNothingIsLost, OtherErrorsEndAtOnce) {
  int64_t attempts = 0;
  const auto fails = [&](bool has_joined, const std::string& message) {
    return [&attempts, has_joined, message](InPlaceRecovery& recovery, const WorkerEnv&) -> int {
      ++attempts;
      recovery.has_joined = has_joined;
      TORCH_CHECK_WITH(DistBackendError, false, message);
    };
  };
  EXPECT_THROW(run_until_nothing_is_lost({}, fails(false, "rank 0: rank 1 did not join")), c10::DistBackendError);
  EXPECT_THROW(run_until_nothing_is_lost({}, fails(true, "rank 0: timed out")), c10::DistBackendError);
  EXPECT_THROW(run_until_nothing_is_lost({},
                                         [&](InPlaceRecovery& recovery, const WorkerEnv&) -> int {
                                           ++attempts;
                                           recovery.has_joined = true;
                                           TORCH_CHECK_VALUE(false, "steps: is 0");
                                         }),
               c10::ValueError);
  EXPECT_EQ(attempts, 3);
}

TEST(RecoversInPlace, ATrainingOfSeveralRanksOnTheCpu) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  WorkerEnv env;
  env.world_size = 2;
  EXPECT_FALSE(recovers_in_place(job, env, at::kCPU)) << "the launcher does not do its part";
  env.recovers_in_place = true;
  EXPECT_TRUE(recovers_in_place(job, env, at::kCPU));
  EXPECT_FALSE(recovers_in_place(job, env, at::Device(at::kCUDA, 0)));
  job.verification.emplace();
  EXPECT_FALSE(recovers_in_place(job, env, at::kCPU));
  env.world_size = 1;
  EXPECT_FALSE(recovers_in_place(small_job(folder), env, at::kCPU));
}

}  // namespace
}  // namespace narrowcast::job
