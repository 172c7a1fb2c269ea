// What srun tells the tasks of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/base/variables.h"

namespace narrowcast {
namespace {

using ::testing::HasSubstr;

// The sixth task of seven on the last of four nodes.
EnvironmentVariables step_variables() {
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "6"},
          {"SLURM_STEP_NUM_TASKS", "7"},
          {"SLURM_NTASKS", "12"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
          {"SLURM_STEP_NODELIST", "a[09-11],b"}};
}

EnvironmentVariables changed(const std::string& name, const std::string& value) {
  return step_variables() + EnvironmentVariables{{name, value}};
}

TEST(SlurmStepTest, GivesEverything) {
  const WorkerEnv env = WorkerEnv::from_variables(step_variables());
  EXPECT_EQ(env.rank, 6);
  EXPECT_EQ(env.world_size, 7);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_world_size, 1);
  EXPECT_EQ(env.master_addr, "a09");
  EXPECT_GE(env.master_port, 15000);
  EXPECT_LT(env.master_port, 30000);
  EXPECT_FALSE(env.on_one_node());
}

TEST(SlurmStepTest, AllTasksDeriveTheSamePortAndOtherStepsAnother) {
  const int64_t port = WorkerEnv::from_variables(step_variables()).master_port;
  const EnvironmentVariables neighbour =
      step_variables() + EnvironmentVariables{{"SLURM_PROCID", "5"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "2"}};
  EXPECT_EQ(WorkerEnv::from_variables(neighbour).master_port, port);
  EXPECT_NE(WorkerEnv::from_variables(changed("SLURM_STEP_ID", "1")).master_port, port);
  EXPECT_NE(WorkerEnv::from_variables(changed("SLURM_JOB_ID", "1235")).master_port, port);
}

// As docs/launcher.md has the formula; FNV-1a of "1234.0", computed independently.
TEST(SlurmStepTest, ThePortIsTheDocumentedOne) {
  EXPECT_EQ(WorkerEnv::from_variables(step_variables()).master_port, 26395);
}

TEST(SlurmStepTest, MasterVariablesWin) {
  const WorkerEnv env = WorkerEnv::from_variables(
      step_variables() + EnvironmentVariables{{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(env.master_addr, "10.0.0.1");
  EXPECT_EQ(env.master_port, 29500);
}

TEST(SlurmStepTest, ABatchScriptIsNoTask) {
  EnvironmentVariables variables = step_variables();
  variables.erase("SLURM_STEP_ID");
  EXPECT_EQ(WorkerEnv::from_variables(variables).world_size, 1);
}

TEST(SlurmStepTest, ALauncherInsideAStepIsTheOneThatCounts) {
  const EnvironmentVariables launcher = {{"TORCHELASTIC_RUN_ID", "x"}, {"RANK", "1"},
                                         {"WORLD_SIZE", "2"},          {"LOCAL_RANK", "1"},
                                         {"LOCAL_WORLD_SIZE", "2"},    {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", "1"}};
  EXPECT_EQ(WorkerEnv::from_variables(step_variables() + launcher).rank, 1);
}

TEST(SlurmStepTest, ErrorsNameTheVariable) {
  for (const std::string name :
       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}) {
    EXPECT_THAT(error_of(changed(name, "")), HasSubstr(name + " is not set")) << name;
  }
  EXPECT_THAT(error_of(changed("SLURM_STEP_NODELIST", "")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error_of(changed("SLURM_STEP_NODELIST", "a[1")), HasSubstr("SLURM_STEP_NODELIST=a[1: '[' without"));
  EXPECT_THAT(error_of(changed("SLURM_STEP_TASKS_PER_NODE", "2(x")), HasSubstr("SLURM_STEP_TASKS_PER_NODE=2(x: "));
  EXPECT_THAT(error_of(changed("SLURM_NODEID", "4")), HasSubstr("SLURM_NODEID=4 contradicts"));
  EXPECT_THAT(error_of(changed("SLURM_PROCID", "7")), HasSubstr("SLURM_PROCID=7 must be less than"));
  EXPECT_THAT(error_of(changed("RANK", "2")), HasSubstr("RANK=2 contradicts SLURM_PROCID=6 of srun"));
}

}  // namespace
}  // namespace narrowcast
