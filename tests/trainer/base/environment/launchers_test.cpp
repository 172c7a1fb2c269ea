// The variables that MPI launchers set for their processes, and which of several launchers takes precedence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/base/environment/variables.h"

namespace narrowcast {
namespace {

using ::testing::HasSubstr;

// Two processes of Open MPI on one node.
EnvironmentVariables open_mpi() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_NAMESPACE", "1545732097"}};
}

// Two processes of MPICH's mpiexec on one node.
EnvironmentVariables mpich() {
  return {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
}

void expect_second_of_two(const WorkerEnv& env) {
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.world_size, 2);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
}

TEST(OpenMpiTest, OnOneNodeItSaysEverything) {
  const WorkerEnv env = WorkerEnv::from_variables(open_mpi());
  expect_second_of_two(env);
  EXPECT_EQ(env.master_addr, "127.0.0.1");
  EXPECT_GE(env.master_port, 15000);
  EXPECT_LT(env.master_port, 30000);
  const WorkerEnv other =
      WorkerEnv::from_variables(open_mpi() + EnvironmentVariables{{"PMIX_NAMESPACE", "1545732098"}});
  EXPECT_NE(other.master_port, env.master_port);
}

TEST(OpenMpiTest, OnSeveralNodesItNeedsAnAddress) {
  const EnvironmentVariables two_nodes =
      open_mpi() + EnvironmentVariables{{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_THAT(error_of(two_nodes), HasSubstr("MASTER_ADDR is not set, but variables of Open MPI show"));
  const WorkerEnv env = WorkerEnv::from_variables(two_nodes + EnvironmentVariables{{"MASTER_ADDR", "node7"}});
  EXPECT_EQ(env.master_addr, "node7");
  EXPECT_FALSE(env.on_one_node());
}

TEST(OpenMpiTest, ErrorsNameTheVariable) {
  const EnvironmentVariables with_address = open_mpi() + EnvironmentVariables{{"MASTER_ADDR", "10.0.0.1"}};
  for (const std::string name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    EXPECT_THAT(error_of(with_address + EnvironmentVariables{{name, ""}}), HasSubstr(name + " is not set"));
    EXPECT_THAT(error_of(with_address + EnvironmentVariables{{name, "x"}}), HasSubstr(name + "='x' is not an integer"));
  }
  EXPECT_THAT(error_of(open_mpi() + EnvironmentVariables{{"PMIX_NAMESPACE", ""}}), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(error_of(open_mpi(), {.local_rank = 0, .local_world_size = 1}), HasSubstr("the default MASTER_ADDR"));
}

TEST(PmiTest, MpichOnOneNodeNeedsAPortOnly) {
  EXPECT_THAT(error_of(mpich()), HasSubstr("MASTER_PORT is not set, but variables of a PMI launcher show"));
  const WorkerEnv env = WorkerEnv::from_variables(mpich() + EnvironmentVariables{{"MASTER_PORT", "29500"}});
  expect_second_of_two(env);
  EXPECT_EQ(env.master_addr, "127.0.0.1");
}

TEST(PmiTest, KnowsTheNamesOfOtherLaunchers) {
  const EnvironmentVariables cray = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PALS_LOCAL_RANKID", "1"}, {"PMI_LOCAL_SIZE", "2"}, {"PALS_APID", "7c3a"}};
  const WorkerEnv env = WorkerEnv::from_variables(cray);
  expect_second_of_two(env);
  EXPECT_GE(env.master_port, 15000);
}

TEST(PmiTest, ErrorsNameTheVariable) {
  for (const std::string name : {"PMI_RANK", "PMI_SIZE"}) {
    EXPECT_THAT(error_of(mpich() + EnvironmentVariables{{name, ""}}), HasSubstr(name + " is not set"));
  }
  EXPECT_THAT(error_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not set"));
}

// One launcher inside another.
TEST(PrecedenceTest, TheInnerLauncherCounts) {
  const EnvironmentVariables step = {{"SLURM_STEP_ID", "0"},
                                     {"SLURM_JOB_ID", "7"},
                                     {"SLURM_PROCID", "0"},
                                     {"SLURM_LOCALID", "0"},
                                     {"SLURM_NODEID", "0"},
                                     {"SLURM_STEP_NUM_TASKS", "1"},
                                     {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                     {"SLURM_STEP_NODELIST", "n1"}};
  EXPECT_EQ(WorkerEnv::from_variables(step).world_size, 1);
  expect_second_of_two(WorkerEnv::from_variables(step + open_mpi()));
  expect_second_of_two(WorkerEnv::from_variables(step + mpich() + EnvironmentVariables{{"MASTER_PORT", "1"}}));
  expect_second_of_two(
      WorkerEnv::from_variables(open_mpi() + EnvironmentVariables{{"PMI_RANK", "0"}, {"PMI_SIZE", "9"}}));
}

TEST(PrecedenceTest, HandMadeVariablesMustAgree) {
  const EnvironmentVariables wrapper = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
  expect_second_of_two(WorkerEnv::from_variables(open_mpi() + wrapper));
  const EnvironmentVariables stale = {{"RANK", "0"}};
  EXPECT_THAT(error_of(open_mpi() + stale), HasSubstr("RANK=0 contradicts OMPI_COMM_WORLD_RANK=1 of Open MPI"));
  expect_second_of_two(WorkerEnv::from_variables(open_mpi() + stale, {.rank = 1}));
}

}  // namespace
}  // namespace narrowcast
