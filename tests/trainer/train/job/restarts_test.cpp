#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

using ::testing::AllOf;
using ::testing::Each;
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

// Two ranks have worked together. The third one is new.
class NewProcessTest : public ::testing::Test {
 protected:
  std::vector<std::string> errors_with(const std::string& plan_of_new) {
    std::vector<std::string> errors(3);
    const TrainJob job{};
    const JobInputs inputs{};
    testing::run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
      const auto plan = nlohmann::json::parse(rank == 2 ? plan_of_new : kPlan);
      testing::outcome_of({}, [&](const JobContext& context) {
        InPlaceRecovery recovery;
        recovery.has_agreed = rank != 2;
        try {
          check_plans({job, inputs, plan, group, context, &recovery});
          EXPECT_TRUE(recovery.has_agreed);
        } catch (const c10::DistBackendError& error) {
          errors[rank] = std::string("lost: ") + error.what_without_backtrace();
        } catch (const c10::ValueError& error) {
          errors[rank] = error.what_without_backtrace();
        }
        return 0;
      });
    });
    return errors;
  }

  static constexpr const char* kPlan = R"({"model": "char_gpt", "seed": 1})";
};

TEST_F(NewProcessTest, WithTheSamePlanIsTakenIn) { EXPECT_THAT(errors_with(kPlan), Each("")); }

TEST_F(NewProcessTest, WithAnotherPlanEndsAlone) {
  const std::vector<std::string> errors = errors_with(R"({"model": "char_gpt", "seed": 2})");
  EXPECT_EQ(errors[0], "lost: rank 0: rank 2 is new, and has another plan");
  EXPECT_EQ(errors[1], "lost: rank 1: rank 2 is new, and has another plan");
  EXPECT_THAT(errors[2], AllOf(HasSubstr("seed: this new process has"), HasSubstr("the ranks of the job have")));
}

TEST(CanTakeInNewcomers, IfTheStateIsEqualOnAllRanksOrThereAreCheckpoints) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  const auto can = [&] {
    std::vector<int> answers(2);
    testing::run_agreed(job, 2, [&](const AgreedJob& agreed) {
      answers[agreed.context.env.rank] = can_take_in_newcomers(agreed) ? 1 : 0;
      return 0;
    });
    EXPECT_EQ(answers[0], answers[1]);
    return answers[0] == 1;
  };
  EXPECT_TRUE(can());
  job.ddp.hook("noop");
  EXPECT_FALSE(can());
  job.checkpoints.folder = folder / "checkpoints";
  EXPECT_TRUE(can());
}

TEST(RecoversInPlace, ATrainingOfSeveralRanks) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  WorkerEnv env;
  env.world_size = 2;
  EXPECT_FALSE(recovers_in_place(job, env)) << "the launcher does not do its part";
  env.recovers_in_place = true;
  EXPECT_TRUE(recovers_in_place(job, env));
  job.verification.emplace();
  EXPECT_FALSE(recovers_in_place(job, env));
  env.world_size = 1;
  EXPECT_FALSE(recovers_in_place(small_job(folder), env));
}

// The launcher also counts nodes that wait to join.
TEST(RanksToCheck, AreAPossibleNumberOnNodesThatMayChange) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.training.batch_size = 36;
  job.training.accumulation_steps = 2;
  WorkerEnv env;
  env.recovers_in_place = true;
  env.world_size = 8;
  EXPECT_EQ(ranks_to_check(job, env), 8) << "nodes do not change";
  env.node = 2;
  EXPECT_EQ(ranks_to_check(job, env), 6);
  env.world_size = 9;
  EXPECT_EQ(ranks_to_check(job, env), 9);
  env.world_size = 8;
  job.dry_run = true;
  EXPECT_EQ(ranks_to_check(job, env), 8);
  job.dry_run = false;
  job.training.accumulation_steps = 100;
  EXPECT_EQ(ranks_to_check(job, env), 8) << "no number is possible";
  job.training.shares = data::parse_shares("30,6");
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { ranks_to_check(job, env); }),
            "shares: 30,6 is for a fixed number of ranks, but nodes may come and go; give auto or equal");
  env.node = 0;
  EXPECT_EQ(ranks_to_check(job, env), 8);
}

}  // namespace
}  // namespace narrowcast::job
