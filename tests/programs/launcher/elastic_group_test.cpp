// ElasticGroup in real processes: elastic_steps.cpp under narrowcast-run, and faults in its steps.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/serialize.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/programs/launcher/node_commands.h"
#include "tests/programs/program_paths.h"
#include "tests/programs/train_commands.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kElasticGroupRanks = 3;
constexpr int kElasticGroupSteps = 30;

class ElasticGroupTest : public NarrowcastRunFixture {
 protected:
  // Runs the steps with these faults. The files are in folder/name.
  ProgramEnd run_steps(const std::string& name, const Words& faults,
                       const Words& flags = {"--recovery=in_place"}) const {
    std::filesystem::create_directories(folder / name);
    Words words = {kRun, "--standalone", "--nproc_per_node=" + std::to_string(kElasticGroupRanks), "--max_restarts=8"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {kElasticSteps, folder / name, std::to_string(kElasticGroupSteps)});
    words.insert(words.end(), faults.begin(), faults.end());
    return run_to_end(words);
  }

  std::vector<at::Tensor> result(const std::string& name, int rank) const {
    std::vector<at::Tensor> parameters;
    torch::load(parameters, folder / (name + "/rank-" + std::to_string(rank)));
    return parameters;
  }

  // The parameters of an undisturbed run, which all tests of this process share. Empty if it failed.
  const std::vector<at::Tensor>& undisturbed() const {
    static const std::vector<at::Tensor> parameters = [&] {
      const ProgramEnd whole = run_steps("whole", {});
      EXPECT_EQ(whole.exit_code, 0) << whole.errors;
      return whole.exit_code == 0 ? result("whole", 0) : std::vector<at::Tensor>();
    }();
    return parameters;
  }

  // All ranks have the parameters of an undisturbed run, and have counted each step once.
  void expect_undisturbed(const std::string& name, const ProgramEnd& ended) const {
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    EXPECT_EQ(count_of("ends after " + std::to_string(kElasticGroupSteps) + " steps", ended.output), kElasticGroupRanks)
        << ended.output;
    const std::vector<at::Tensor>& expected = undisturbed();
    ASSERT_FALSE(expected.empty());
    for (int rank = 0; rank < kElasticGroupRanks; ++rank) {
      const std::vector<at::Tensor> found = result(name, rank);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << "rank " << rank;
    }
  }
};

TEST_F(ElasticGroupTest, AKilledRankIsReplacedAndTheOthersGoOn) {
  const ProgramEnd ended = run_steps("killed", {"kill:1:12"});
  expect_undisturbed("killed", ended);
  EXPECT_EQ(count_of("goes on with step 12", ended.output), kElasticGroupRanks) << ended.output;
  EXPECT_EQ(count_of("ends after 30 steps, 1 recoveries", ended.output), kElasticGroupRanks - 1)
      << "the others lived on";
}

// Rank 0, whose parameters all take at the start, in the first and in the last step, and others at once.
TEST_F(ElasticGroupTest, AnyRankMayBeLostInAnyStep) {
  const ProgramEnd ended = run_steps("often", {"kill:0:0", "late:2:9", "kill:0:14", "kill:1:14", "late:1:29"});
  expect_undisturbed("often", ended);
  EXPECT_THAT(ended.output, HasSubstr("goes on with step 14"));
}

TEST_F(ElasticGroupTest, AnErrorOfTheProgramEndsItsProcess) {
  const ProgramEnd ended = run_steps("error", {"die:2:7"});
  expect_undisturbed("error", ended);
  EXPECT_THAT(ended.errors, HasSubstr("elastic_steps: no data for step 7\n"));
}

TEST_F(ElasticGroupTest, ARankThatHangsIsReplaced) {
  const ProgramEnd ended = run_steps("hang", {"hang:1:5"});
  expect_undisturbed("hang", ended);
  EXPECT_THAT(ended.errors, HasSubstr("rank 1 is silent for other ranks"));
}

// Each of them was to watch the next one.
TEST_F(ElasticGroupTest, RanksThatHangAtOnceAreReplaced) {
  const ProgramEnd ended = run_steps("hang_both", {"hang:1:5", "hang:2:5"});
  expect_undisturbed("hang_both", ended);
  EXPECT_THAT(ended.errors, AllOf(HasSubstr("rank 1 is silent for other ranks"), HasSubstr("rank 2 is silent")));
}

// Without the launcher's part, a loss is an error as in other programs.
TEST_F(ElasticGroupTest, UnderARestartingLauncherAllRanksBeginAgain) {
  const ProgramEnd ended = run_steps("restart", {"kill:1:12"}, {"--recovery=restart"});
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, AllOf(HasSubstr("restart 1"), Not(HasSubstr("takes its place"))));
  EXPECT_EQ(count_of("ends after 30 steps, 0 recoveries", ended.output), kElasticGroupRanks);
  EXPECT_THAT(ended.output, Not(HasSubstr("goes on with step")));
}

// Nodes of one rank each, whose steps do not end.
class ElasticGroupOnNodesTest : public NarrowcastRunNodesFixture {
 protected:
  // As if all ranks were on one node: the store is at a loopback address.
  Words node(const std::string& is_host, const std::string& fault = "") const {
    Words flags = quick();
    flags.back() += ",last_call_timeout=0.3,is_host=" + is_host;
    const std::string program = std::string(kElasticSteps) + " " + (folder / "") + " 1000000 " + fault;
    return launcher({"--nnodes=1:2", "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:" + port},
                    "export LOCAL_WORLD_SIZE=$WORLD_SIZE LOCAL_RANK=$RANK; exec " + program,
                    flags + Words{"--recovery=in_place", "--max_restarts=3"});
  }
};

TEST_F(ElasticGroupOnNodesTest, ANewcomerWithAnotherStateEndsAlone) {
  RunningProgram host(node("true"));
  host.wait_for_output("rank 0 takes step 300");
  const ProgramEnd ended = run_to_end(node("false", "another:1:0"));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("narrowcast-run: the others go on without this node: state 'more': this new "
                                      "process has 'Float [1]', the ranks of the job have none"));
  EXPECT_THAT(ended.errors, Not(HasSubstr("takes its place")));
  host.wait_for_errors("was removed: its ranks do not fit the others: goes on with 1 rank");
  RunningProgram newcomer(node("false"));
  newcomer.wait_for_output("rank 1 goes on with step ");
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

}  // namespace
}  // namespace narrowcast::testing
