#include <narrowcast/worker_env.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "tests/trainer/base/environment/variables.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ProcessEnvironmentTest, HoldsWhatThisProcessWasGiven) {
  ASSERT_EQ(setenv("NARROWCAST_WORKER_ENV_TEST", "a=b", 1), 0);
  EXPECT_EQ(process_environment().at("NARROWCAST_WORKER_ENV_TEST"), "a=b");
  ASSERT_EQ(unsetenv("NARROWCAST_WORKER_ENV_TEST"), 0);
  EXPECT_EQ(process_environment().count("NARROWCAST_WORKER_ENV_TEST"), 0u);
}

TEST(ProcessEnvironmentTest, NamesTheErrorFile) {
  ASSERT_EQ(setenv("TORCHELASTIC_ERROR_FILE", "/tmp/error.json", 1), 0);
  EXPECT_EQ(worker_error_file(), "/tmp/error.json");
  ASSERT_EQ(unsetenv("TORCHELASTIC_ERROR_FILE"), 0);
  EXPECT_EQ(worker_error_file(), "");
}

TEST(SessionEnvTest, ReadsWhatProgramsLookAt) {
  const SessionEnv env = SessionEnv::from_variables(
      {{"NO_COLOR", "1"}, {"OMP_NUM_THREADS", "4"}, {"TERM", "dumb"}, {"XDG_CACHE_HOME", "/cache"}, {"HOME", "/h"}});
  EXPECT_TRUE(env.no_color);
  EXPECT_TRUE(env.omp_num_threads_set);
  EXPECT_EQ(env.term, "dumb");
  EXPECT_EQ(env.cache_home, "/cache");
}

TEST(SessionEnvTest, HasDefaults) {
  const SessionEnv env = SessionEnv::from_variables({{"NO_COLOR", ""}, {"HOME", "/home/me"}});
  EXPECT_FALSE(env.no_color);
  EXPECT_FALSE(env.omp_num_threads_set);
  EXPECT_EQ(env.term, "");
  EXPECT_EQ(env.cache_home, "/home/me/.cache");
  EXPECT_EQ(SessionEnv::from_variables({}).cache_home, "");
}

// The variables that torchrun sets for the third of four workers on the second of two nodes.
EnvironmentVariables torchrun_variables() {
  return {{"RANK", "6"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "2"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "3"},
          {"TORCHELASTIC_RUN_ID", "job-1"},
          {"TORCHELASTIC_ERROR_FILE", "/tmp/error.json"}};
}

TEST(WorkerEnvTest, RecoversInPlaceWhereTheLauncherDoesItsPart) {
  EXPECT_FALSE(WorkerEnv::from_variables(torchrun_variables()).recovers_in_place);
  EnvironmentVariables variables = torchrun_variables() + EnvironmentVariables{{"NARROWCAST_RECOVERY", "in_place"}};
  EXPECT_TRUE(WorkerEnv::from_variables(variables).recovers_in_place);
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { WorkerEnv::from_variables(variables); }),
            "NARROWCAST_RECOVERY=in_place needs a launcher that serves the store, TORCHELASTIC_USE_AGENT_STORE=True");
}

TEST(WorkerEnvTest, KnowsItsPlaceOnANodeThatMayChange) {
  EnvironmentVariables variables = torchrun_variables() + EnvironmentVariables{{"NARROWCAST_NODE", "3/1"}};
  EXPECT_EQ(WorkerEnv::from_variables(variables).node, 0) << "another launcher's workers inherit it";
  variables["NARROWCAST_RECOVERY"] = "in_place";
  EXPECT_EQ(WorkerEnv::from_variables(variables).node, 3);
  EXPECT_EQ(WorkerEnv::from_variables(variables).rank_on_node, 1);
  EXPECT_EQ(WorkerEnv::from_variables(variables).store_file, "");
  variables["NARROWCAST_STORE_FILE"] = "/tmp/store";
  EXPECT_EQ(WorkerEnv::from_variables(variables).store_file, "/tmp/store");
  for (const char* const text : {"3", "3/", "/1", "0/1", "-3/1", "3/-1", "a/1"}) {
    variables["NARROWCAST_NODE"] = text;
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { WorkerEnv::from_variables(variables); }),
                HasSubstr("NARROWCAST_NODE"))
        << text;
  }
}

TEST(WorkerEnvTest, AnIPv6AddressMayStandInBracketsAndHaveAPort) {
  const EnvironmentVariables job = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}};
  for (const auto& [address, port] : {std::pair("[::1]", "29500"), std::pair("::1", "29500"),
                                      std::pair("[::1]:29500", ""), std::pair("[::1]:29500", "29500")}) {
    const WorkerEnv env =
        WorkerEnv::from_variables(job + EnvironmentVariables{{"MASTER_ADDR", address}, {"MASTER_PORT", port}});
    EXPECT_EQ(env.master_addr, "::1") << address;
    EXPECT_EQ(env.master_port, 29500) << address;
  }
  const WorkerEnv flags =
      WorkerEnv::from_variables({}, {.rank = 0, .world_size = 2, .master_addr = "[::1]", .master_port = 29500});
  EXPECT_EQ(flags.master_addr, "::1");
  EXPECT_THAT(error_of(job + EnvironmentVariables{{"MASTER_ADDR", "[::1]:1"}, {"MASTER_PORT", "2"}}),
              HasSubstr("MASTER_ADDR=[::1]:1 contradicts MASTER_PORT=2"));
  EXPECT_THAT(error_of(job + EnvironmentVariables{{"MASTER_ADDR", "[::1"}, {"MASTER_PORT", "2"}}),
              HasSubstr("MASTER_ADDR=[::1 must be a name or an address"));
}

TEST(WorkerEnvTest, IsOneProcessAloneWithoutALauncher) {
  const WorkerEnv env = WorkerEnv::from_variables({{"HOME", "/root"}, {"MASTER_ADDR", "left.over"}});
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_world_size, 1);
  EXPECT_EQ(env.master_addr, "");
  EXPECT_TRUE(env.on_one_node());
}

TEST(WorkerEnvTest, ReadsWhatTorchrunSets) {
  const WorkerEnv env = WorkerEnv::from_variables(torchrun_variables());
  EXPECT_EQ(env.rank, 6);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 2);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.master_addr, "10.0.0.1");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_TRUE(env.use_agent_store);
  EXPECT_EQ(env.restart_count, 3);
  EXPECT_EQ(env.run_id, "job-1");
  EXPECT_EQ(env.error_file, "/tmp/error.json");
  EXPECT_FALSE(env.on_one_node());
}

TEST(WorkerEnvTest, AWorldOfOneNeedsNoMaster) {
  const WorkerEnv env = WorkerEnv::from_variables({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(env.world_size, 1);
  EXPECT_EQ(env.master_port, 0);
}

TEST(WorkerEnvTest, ALoopbackMasterImpliesOneNode) {
  for (const std::string master : {"127.0.0.1", "127.1.2.3", "localhost", "::1"}) {
    const WorkerEnv env =
        WorkerEnv::from_variables({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", master}, {"MASTER_PORT", "1"}});
    EXPECT_EQ(env.local_rank, 2) << master;
    EXPECT_EQ(env.local_world_size, 3) << master;
    EXPECT_TRUE(env.on_one_node()) << master;
  }
}

TEST(WorkerEnvTest, NamesTheMissingVariable) {
  for (const std::string name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EnvironmentVariables variables = torchrun_variables();
    variables.erase(name);
    EXPECT_THAT(error_of(variables), HasSubstr(name + " is not set"));
    variables[name] = "";
    EXPECT_THAT(error_of(variables), HasSubstr(name + " is not set"));
  }
  EXPECT_THAT(error_of({{"LOCAL_RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
}

struct BadValue {
  std::string name;
  std::string value;
  std::string complaint;
};

class WorkerEnvBadValueTest : public ::testing::TestWithParam<BadValue> {};

TEST_P(WorkerEnvBadValueTest, IsAValueErrorNamingVariableAndValue) {
  EXPECT_THAT(error_of(torchrun_variables() + EnvironmentVariables{{GetParam().name, GetParam().value}}),
              AllOf(HasSubstr(GetParam().name), HasSubstr(GetParam().value), HasSubstr(GetParam().complaint)));
}

INSTANTIATE_TEST_SUITE_P(
    Values, WorkerEnvBadValueTest,
    ::testing::Values(
        BadValue{"RANK", "two", "not an integer"}, BadValue{"RANK", "1.5", "not an integer"},
        BadValue{"RANK", "-1", "not between 0"}, BadValue{"RANK", "8", "less than WORLD_SIZE=8"},
        BadValue{"RANK", "99999999999999999999", "not an integer"}, BadValue{"WORLD_SIZE", "0", "not between 1"},
        BadValue{"WORLD_SIZE", "2147483648", "not between"}, BadValue{"WORLD_SIZE", "3", "RANK=6 must be less"},
        BadValue{"LOCAL_RANK", "4", "less than LOCAL_WORLD_SIZE=4"}, BadValue{"LOCAL_WORLD_SIZE", "0", "not between 1"},
        BadValue{"LOCAL_WORLD_SIZE", "9", "must not exceed WORLD_SIZE=8"},
        BadValue{"LOCAL_WORLD_SIZE", "8", "LOCAL_RANK=2 must equal RANK=6"},
        BadValue{"MASTER_PORT", "0", "not between 1 and 65535"},
        BadValue{"MASTER_PORT", "65536", "not between 1 and 65535"}, BadValue{"MASTER_PORT", "http", "not an integer"},
        BadValue{"MASTER_ADDR", "localhost", "other nodes must reach it"},
        BadValue{"TORCHELASTIC_USE_AGENT_STORE", "maybe", "must be True or False"},
        BadValue{"NARROWCAST_RECOVERY", "restart", "must be in_place or not set"},
        BadValue{"TORCHELASTIC_RESTART_COUNT", "-2", "not between 0"}));

TEST(WorkerEnvTest, ReadsTheInterfaceAlsoWithoutALauncher) {
  EXPECT_EQ(WorkerEnv::from_variables({{"GLOO_SOCKET_IFNAME", "eth7"}}).socket_interface, "eth7");
}

TEST(WorkerEnvTest, AKubernetesPodIsANode) {
  const EnvironmentVariables pod = {{"RANK", "1"},
                                    {"WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "job-master-0"},
                                    {"MASTER_PORT", "23456"},
                                    {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
  const WorkerEnv env = WorkerEnv::from_variables(pod);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_world_size, 1);
  EXPECT_THAT(error_of(pod + EnvironmentVariables{{"MASTER_ADDR", "localhost"}}),
              HasSubstr("MASTER_ADDR=localhost is a loopback address of this node"));
}

TEST(WorkerFlagsTest, AloneDescribeAJob) {
  const WorkerEnv env =
      WorkerEnv::from_variables({}, {.rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = 29500});
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.world_size, 2);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.master_port, 29500);
}

TEST(WorkerFlagsTest, WinOverVariables) {
  const WorkerFlags flags = {.rank = 1,
                             .world_size = 4,
                             .local_rank = 1,
                             .local_world_size = 2,
                             .master_addr = "10.0.0.9",
                             .master_port = 1234};
  const WorkerEnv env = WorkerEnv::from_variables(torchrun_variables(), flags);
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "10.0.0.9");
  EXPECT_EQ(env.master_port, 1234);
}

TEST(WorkerFlagsTest, ErrorsNameTheFlagOrWhatItContradicts) {
  EXPECT_THAT(error_of(torchrun_variables(), {.rank = 8}), HasSubstr("--rank=8 must be less than WORLD_SIZE=8"));
  EXPECT_THAT(error_of(torchrun_variables(), {.rank = -1}), HasSubstr("--rank=-1 is not between 0"));
  EXPECT_THAT(error_of(torchrun_variables(), {.world_size = 6}), HasSubstr("RANK=6 must be less than --world_size=6"));
  EXPECT_THAT(error_of(torchrun_variables(), {.local_rank = 4}),
              HasSubstr("--local_rank=4 must be less than LOCAL_WORLD_SIZE=4"));
  EXPECT_THAT(error_of(torchrun_variables(), {.master_port = 0}), HasSubstr("--master_port=0 is not between 1"));
  EXPECT_THAT(error_of(torchrun_variables(), {.master_addr = "127.0.0.1"}),
              HasSubstr("--master_addr=127.0.0.1 is a loopback address of this node"));
  EXPECT_THAT(error_of(torchrun_variables(), {.master_addr = ""}),
              HasSubstr("--master_addr= must be a name or an address"));
}

TEST(WorkerFlagsTest, GapsAreNamed) {
  EXPECT_THAT(error_of({}, {.rank = 0}), HasSubstr("WORLD_SIZE is not set, but flags show"));
  EXPECT_THAT(error_of({}, {.world_size = 2}), HasSubstr("RANK is not set"));
  EXPECT_THAT(error_of({}, {.rank = 0, .world_size = 2}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error_of({}, {.rank = 0, .world_size = 2, .master_addr = "10.0.0.1", .master_port = 1}),
              HasSubstr("LOCAL_WORLD_SIZE is not set"));
}

TEST(WorkerFlagsTest, AnAddressForOneProcessAloneIsAnError) {
  EXPECT_THAT(error_of({}, {.master_addr = "10.0.0.1"}), HasSubstr("--master_addr: has no effect"));
  EXPECT_THAT(error_of({}, {.master_port = 1}), HasSubstr("--master_port: has no effect"));
}

}  // namespace

}  // namespace narrowcast
