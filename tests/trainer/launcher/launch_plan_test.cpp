#include "trainer/launcher/launch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace narrowcast::launcher {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

LaunchOptions options(int64_t nproc) {
  LaunchOptions wanted;
  wanted.command = {"/bin/train", "--steps=3"};
  wanted.nproc_per_node = nproc;
  wanted.output.run_folder = "/runs/7";
  return wanted;
}

Round two_ranks() {
  Round round;
  round.master_addr = "127.0.0.1";
  round.master_port = 29501;
  round.run_id = "job";
  round.world_size = 2;
  round.role_world_size = 2;
  return round;
}

TEST(LaunchPlan, GivesWorkersWhatTorchrunGives) {
  const auto workers = plan_workers(options(2), two_ranks(), {{"HOME", "/home/me"}});
  ASSERT_EQ(workers.size(), 2U);
  // The table of docs/launcher.md, for rank 1.
  const EnvironmentVariables expected = {{"HOME", "/home/me"},
                                         {"RANK", "1"},
                                         {"LOCAL_RANK", "1"},
                                         {"WORLD_SIZE", "2"},
                                         {"LOCAL_WORLD_SIZE", "2"},
                                         {"GROUP_RANK", "0"},
                                         {"GROUP_WORLD_SIZE", "1"},
                                         {"ROLE_NAME", "default"},
                                         {"ROLE_RANK", "1"},
                                         {"ROLE_WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", "29501"},
                                         {"TORCHELASTIC_ERROR_FILE", "/runs/7/attempt_0/1/error.json"},
                                         {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                                         {"TORCHELASTIC_RUN_ID", "job"},
                                         {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
                                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                         {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                         {"OMP_NUM_THREADS", "1"}};
  EXPECT_EQ(workers[1].environment, expected);
  EXPECT_THAT(workers[0].environment, Contains(Pair("RANK", "0")));
}

TEST(LaunchPlan, KnowsHowManyFilesAreOpen) {
  EXPECT_EQ(open_files_needed(options(8), 0), 32 + 16);
  EXPECT_EQ(open_files_needed(options(8), 16), 32 + 16 + 32);
  LaunchOptions teed = options(8);
  teed.output.tee = StreamChoices::parse("--tee", "3");
  EXPECT_EQ(open_files_needed(teed, 16), 32 + 32 + 32);
}

TEST(LaunchPlan, WorkersUnderstandIt) {
  for (const WorkerCommand& worker : plan_workers(options(2), two_ranks(), {})) {
    const WorkerEnv env = WorkerEnv::from_variables(worker.environment);
    EXPECT_EQ(env.rank, worker.rank);
    EXPECT_EQ(env.local_rank, worker.local_rank);
    EXPECT_EQ(env.world_size, 2);
    EXPECT_EQ(env.master_port, 29501);
    EXPECT_TRUE(env.use_agent_store);
    EXPECT_EQ(env.error_file, worker.error_file);
  }
}

TEST(LaunchPlan, GivesEachRankTheSameCommand) {
  const auto workers = plan_workers(options(3), two_ranks(), {});
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    EXPECT_EQ(workers[rank].rank, static_cast<int64_t>(rank));
    EXPECT_EQ(workers[rank].arguments, (std::vector<std::string>{"/bin/train", "--steps=3"}));
  }
}

TEST(LaunchPlan, LimitsThreadsOnlyOfSeveralWorkersAndUnlessToldOtherwise) {
  EXPECT_THAT(plan_workers(options(1), two_ranks(), {})[0].environment, Not(Contains(Key("OMP_NUM_THREADS"))));
  EXPECT_THAT(plan_workers(options(2), two_ranks(), {{"OMP_NUM_THREADS", "4"}})[0].environment,
              Contains(Pair("OMP_NUM_THREADS", "4")));
  // Set to nothing counts as not set.
  EXPECT_THAT(plan_workers(options(2), two_ranks(), {{"OMP_NUM_THREADS", ""}})[0].environment,
              Contains(Pair("OMP_NUM_THREADS", "1")));
  EXPECT_TRUE(limits_threads(options(2), {}));
  EXPECT_FALSE(limits_threads(options(1), {}));
  EXPECT_FALSE(limits_threads(options(2), {{"OMP_NUM_THREADS", "4"}}));
}

TEST(LaunchPlan, OverridesAnOuterJobButKeepsTheUsersChoices) {
  const auto workers = plan_workers(options(1), two_ranks(),
                                    {{"RANK", "5"},
                                     {"WORLD_SIZE", "9"},
                                     {"MASTER_PORT", "1"},
                                     {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                     {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}});
  EXPECT_THAT(workers[0].environment, Contains(Pair("RANK", "0")));
  EXPECT_THAT(workers[0].environment, Contains(Pair("WORLD_SIZE", "2")));
  EXPECT_THAT(workers[0].environment, Contains(Pair("MASTER_PORT", "29501")));
  EXPECT_THAT(workers[0].environment, Contains(Pair("TORCHELASTIC_USE_AGENT_STORE", "True")));
  EXPECT_THAT(workers[0].environment, Contains(Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")));
}

TEST(LaunchPlan, NamesLogFilesOnlyIfAsked) {
  LaunchOptions wanted = options(2);
  EXPECT_TRUE(plan_workers(wanted, two_ranks(), {})[1].output.file.empty());
  wanted.output.redirects = StreamChoices::parse("--redirects", "1:3");
  const auto workers = plan_workers(wanted, two_ranks(), {});
  EXPECT_TRUE(workers[0].output.file.empty());
  EXPECT_EQ(workers[1].output.file, "/runs/7/attempt_0/1/stdout.log");
  EXPECT_EQ(workers[1].error.file, "/runs/7/attempt_0/1/stderr.log");
}

TEST(LaunchPlan, GivesEachAttemptAFolderAndANumber) {
  Round third = two_ranks();
  third.restart_count = 2;
  third.max_restarts = 5;
  const WorkerCommand worker = plan_workers(options(2), third, {})[0];
  EXPECT_EQ(worker.error_file, "/runs/7/attempt_2/0/error.json");
  EXPECT_THAT(worker.environment, Contains(Pair("TORCHELASTIC_RESTART_COUNT", "2")));
  EXPECT_THAT(worker.environment, Contains(Pair("TORCHELASTIC_MAX_RESTARTS", "5")));
}

TEST(LaunchPlan, CountsRolesApart) {
  Round round = two_ranks();
  round.first_rank = 4;
  round.world_size = 6;
  round.role_first_rank = 1;
  round.role_world_size = 3;
  LaunchOptions wanted = options(2);
  wanted.role = "reader";
  const WorkerCommand worker = plan_workers(wanted, round, {})[1];
  EXPECT_THAT(worker.environment, Contains(Pair("ROLE_NAME", "reader")));
  EXPECT_THAT(worker.environment, Contains(Pair("ROLE_RANK", "2")));
  EXPECT_THAT(worker.environment, Contains(Pair("ROLE_WORLD_SIZE", "3")));
}

TEST(LaunchPlan, CountsRanksOnwardsFromTheNodesFirst) {
  Round second_node = two_ranks();
  second_node.node_rank = 1;
  second_node.nodes = 2;
  second_node.first_rank = 4;
  second_node.world_size = 6;
  const auto workers = plan_workers(options(2), second_node, {});
  EXPECT_THAT(workers[1].environment, Contains(Pair("RANK", "5")));
  EXPECT_THAT(workers[1].environment, Contains(Pair("LOCAL_RANK", "1")));
  EXPECT_THAT(workers[1].environment, Contains(Pair("GROUP_RANK", "1")));
  EXPECT_THAT(workers[1].environment, Contains(Pair("WORLD_SIZE", "6")));
}

}  // namespace
}  // namespace narrowcast::launcher
