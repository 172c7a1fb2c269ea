#include "trainer/base/environment/slurm.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"
#include "tests/trainer/base/environment/variables.h"

namespace narrowcast {
namespace {

using slurm::expand_counts;
using slurm::expand_host_list;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(HostListTest, NamesOneByOne) {
  EXPECT_THAT(expand_host_list("a"), ElementsAre("a"));
  EXPECT_THAT(expand_host_list("gpu-1.example,b"), ElementsAre("gpu-1.example", "b"));
}

TEST(HostListTest, RangesKeepTheirZeros) {
  EXPECT_THAT(expand_host_list("a[01-03,7],b"), ElementsAre("a01", "a02", "a03", "a7", "b"));
  EXPECT_THAT(expand_host_list("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand_host_list("n[098-101]x"), ElementsAre("n098x", "n099x", "n100x", "n101x"));
}

TEST(HostListTest, SeveralBracketsRunLikeNestedLoops) {
  EXPECT_THAT(expand_host_list("r[1-2]n[3,5]"), ElementsAre("r1n3", "r1n5", "r2n3", "r2n5"));
}

TEST(HostListTest, SaysWhatIsWrong) {
  const auto error_of = [](const std::string& list) {
    return testing::error_message<c10::ValueError>([&] { expand_host_list(list); });
  };
  EXPECT_THAT(error_of("a[1-2"), HasSubstr("'[' without ']'"));
  EXPECT_THAT(error_of("a1]"), HasSubstr("']' without '['"));
  EXPECT_THAT(error_of("a[3-1]"), HasSubstr("'3-1' runs backwards"));
  EXPECT_THAT(error_of("a[x-3]"), HasSubstr("'x' is not a number"));
  EXPECT_THAT(error_of("a[1-2-3]"), HasSubstr("'2-3' is not a number"));
  EXPECT_THAT(error_of("a[]"), HasSubstr("'' is not a number"));
  EXPECT_THAT(error_of("a,,b"), HasSubstr("name is empty"));
  EXPECT_THAT(error_of("a[0-99999999]"), HasSubstr("more than 65536"));
  EXPECT_THAT(error_of("a[0-999]b[0-999]"), HasSubstr("more than 65536"));
}

TEST(CountsTest, ExpandRepetitions) {
  EXPECT_THAT(expand_counts("4"), ElementsAre(4));
  EXPECT_THAT(expand_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(expand_counts("8(x1000)"), SizeIs(1000));
}

TEST(CountsTest, SayWhatIsWrong) {
  for (const std::string list : {"", "two", "2(x", "2(x3", "2(xa)", "2(x)", "1,", "-1", "2(x99999)"}) {
    EXPECT_THROW(expand_counts(list), c10::ValueError) << list;
  }
}

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

// The formula of docs/reference/launcher.md: FNV-1a of "1234.0", computed independently.
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
