#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/outer_options.h>

#include "tests/support/error_message.h"
#include "tests/trainer/train/job/small_job.h"
#include "trainer/base/program/failure.h"
#include "trainer/ddp/outer/outer_arguments.h"
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

// The outer quorum of a job of several ranks, and what all of them have printed.
struct LeftQuorum {
  std::optional<int64_t> quorum;
  std::optional<double> grace;
  nlohmann::json plan;
  std::string warnings;
};

// `restarted`: the ranks that were started before. Groups have `group_size` ranks.
LeftQuorum left_quorum(const OuterOptions& outer, int64_t world_size, const std::vector<int64_t>& restarted,
                       int64_t group_size = 1) {
  TrainJob job;
  job.ddp.hook("post_local_sgd").local({.group_size = group_size});
  job.outer = outer;
  const nlohmann::json plan = {{"outer_quorum", *outer.quorum()},
                               {"outer_grace_seconds", outer.grace_seconds().value_or(-1)}};
  std::vector<LeftQuorum> left(static_cast<size_t>(world_size));
  testing::run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    WorkerEnv env;
    env.rank = rank;
    env.restart_count = std::ranges::find(restarted, rank) == restarted.end() ? 0 : 2;
    left[rank].warnings = testing::outcome_of(env, [&](const JobContext& context) {
                            TrainJob own = job;
                            left[rank].plan = plan;
                            use_possible_quorum({job, {}, plan, group, context}, own, left[rank].plan);
                            left[rank].quorum = own.outer->quorum();
                            left[rank].grace = own.outer->grace_seconds();
                            return 0;
                          }).progress;
  });
  for (int64_t rank = 1; rank < world_size; ++rank) {
    EXPECT_EQ(left[rank].quorum, left[0].quorum);
    EXPECT_EQ(left[rank].grace, left[0].grace);
    EXPECT_EQ(left[rank].plan, left[0].plan);
    EXPECT_EQ(left[rank].warnings, "");
  }
  return left[0];
}

OuterOptions quorum_of(int64_t quorum, std::optional<double> grace = std::nullopt) {
  return OuterOptions().sync_every(4).quorum(quorum).grace_seconds(grace);
}

// One rank may be new, and the others have lived on; or all were started again.
TEST(UsePossibleQuorum, AJobGoesOnWithFewerGroups) {
  for (const std::vector<int64_t>& restarted : std::vector<std::vector<int64_t>>{{0, 1}, {0}, {1}}) {
    const LeftQuorum left = left_quorum(quorum_of(3, 2), 2, restarted);
    EXPECT_EQ(left.quorum, 2);
    EXPECT_FALSE(left.grace.has_value()) << "a quorum of all groups has none";
    EXPECT_EQ(left.plan, (nlohmann::json{{"outer_quorum", 2}}));
    EXPECT_EQ(left.warnings,
              "warning: outer_quorum: is 3, but there are 2 groups, so outer steps wait for all until another group "
              "joins\n");
    EXPECT_NO_THROW(check_quorum(quorum_of(*left.quorum, left.grace), 2));
  }
  EXPECT_EQ(left_quorum(quorum_of(3), 4, {0}, /*group_size=*/2).quorum, 2) << "two groups of two ranks";
}

TEST(UsePossibleQuorum, AQuorumOfAllGroupsThatAreLeftHasNoGrace) {
  const LeftQuorum left = left_quorum(quorum_of(2, 2), 2, {0, 1});
  EXPECT_EQ(left.quorum, 2);
  EXPECT_FALSE(left.grace.has_value());
  EXPECT_THAT(left.warnings, HasSubstr("outer_quorum: is 2, but there are 2 groups"));
}

TEST(UsePossibleQuorum, OneGroupThatIsLeftWaitsForNobody) {
  const LeftQuorum left = left_quorum(quorum_of(2, 2), 1, {0});
  EXPECT_EQ(left.quorum, 1);
  EXPECT_FALSE(left.grace.has_value());
  EXPECT_EQ(left.warnings,
            "warning: outer_quorum: is 2, but there is one group, so it has no effect until another group joins\n");
}

TEST(UsePossibleQuorum, OtherJobsKeepTheirs) {
  for (const std::vector<int64_t>& restarted : std::vector<std::vector<int64_t>>{{}, {0, 1, 2}}) {
    const LeftQuorum enough = left_quorum(quorum_of(2, 2), 3, restarted);
    EXPECT_EQ(enough.quorum, 2);
    EXPECT_EQ(enough.grace, 2);
    EXPECT_EQ(enough.plan["outer_grace_seconds"], 2);
    EXPECT_EQ(enough.warnings, "");
    EXPECT_EQ(left_quorum(quorum_of(3), 3, restarted).warnings, "");
  }
  const LeftQuorum first = left_quorum(quorum_of(3, 2), 2, {});
  EXPECT_EQ(first.quorum, 3) << "OuterOptimizer refuses it";
  EXPECT_EQ(first.grace, 2);
  EXPECT_EQ(first.warnings, "");
}

// The launcher's ranks of a node are a group.
TEST(DryRun, RefusesAQuorumOfMoreGroupsThanItPlans) {
  const TemporaryFolder folder;
  TrainJob job = small_job(folder);
  job.dry_run = true;
  job.ddp.hook("post_local_sgd");
  job.training.batch_size = 8;
  job.outer = quorum_of(3);
  WorkerEnv env;
  env.world_size = 4;
  env.local_world_size = 2;
  const auto error = [&] { return error_message<c10::ValueError>([&] { testing::run_alone(job, env); }); };
  EXPECT_EQ(error(), "outer_quorum: must be at most the number of groups (2), but is 3");
  job.outer = quorum_of(2, 1);
  EXPECT_EQ(error(), "outer_grace_seconds: 1 has no effect with an outer_quorum of all 2 groups");
  job.ddp.local({.group_size = 1});
  EXPECT_EQ(error(), "nothing was thrown");
}

}  // namespace
}  // namespace narrowcast::job
