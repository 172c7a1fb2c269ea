// A rank is killed in a training whose ranks share the optimizer's state.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <ostream>
#include <string>

#include "tests/programs/launcher/run_commands.h"
#include "tests/programs/train_commands.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct LostShard {
  std::string name;
  std::string flags;
  std::string lost;  // why the training goes back to its checkpoint; empty: it recovers in place
};

// Whether the rank was killed outside of the step of its shard, or in it.
constexpr const char* kLostOnOneNode =
    "(no rank that is left holds the optimizer's state of|the ranks that are left were in a step)[^;]*";

void PrintTo(const LostShard& value, std::ostream* out) { *out << value.name; }

class NarrowcastRunShardsTest : public ::testing::TestWithParam<LostShard> {
 protected:
  Words training(const std::string& name) const {
    std::string train = kNarrowcastTrain;
    for (const std::string& flag :
         Words{"--model=char_gpt", "--layers=1", "--heads=2", "--width=32", "--context=16", "--batch_size=8"} +
             Words{"--steps=60", "--log_every=1", "--eval_every=0", "--hook=int8", "--link_gbit=1", "--link_us=100"} +
             Words{"--checkpoint_every=8", "--checkpoint_dir=" + folder / (name + "_checkpoints")} +
             Words{"--output_dir=" + folder / name} + text_elsewhere()) {
      train += " " + flag;
    }
    return command(4, "echo rank $RANK pid $$; exec " + train + " " + GetParam().flags,
                   {"--recovery=in_place", "--max_restarts=3", "--rdzv_id=" + name});
  }
  std::string model(const std::string& name) const { return files::read_file(folder / name + "/model.safetensors"); }

  const TemporaryFolder folder;
};

// Two nodes of two ranks, or one of four.
TEST_P(NarrowcastRunShardsTest, TheModelHasTheBitsOfATrainingThatLostNoRank) {
  const ProgramEnd undisturbed = run_to_end(training("undisturbed"), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.errors;
  RunningProgram launcher(training("disturbed"), {{"OMP_NUM_THREADS", "1"}});
  launcher.wait_for_output("rank 3 pid ");
  const std::string metrics = folder / "disturbed/metrics.jsonl";
  wait_until([&] {
    return std::filesystem::exists(metrics) && count_of("\"event\":\"step\"", files::read_file(metrics)) > 12;
  });
  const std::vector<pid_t> pids = pids_after("rank 3 pid ", launcher.output());
  ASSERT_EQ(pids.size(), 1U);
  ASSERT_EQ(::kill(pids[0], SIGKILL), 0);
  const ProgramEnd ended = launcher.wait();
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("was ended by SIGKILL; a new process takes its place"));
  if (GetParam().lost.empty()) {
    EXPECT_THAT(ended.errors, ContainsRegex("recovered: rank 3 was lost; goes on after step [0-9]+, "));
    EXPECT_THAT(ended.errors, Not(HasSubstr("resumes from")));
  } else {
    EXPECT_THAT(ended.errors, ContainsRegex("cannot recover from the ranks' memory: " + GetParam().lost +
                                            "; goes back to the newest checkpoint\n.*resumes from "));
    EXPECT_THAT(files::read_file(metrics), ContainsRegex("\"event\":\"resume\",\"lost\":\"" + GetParam().lost));
  }
  EXPECT_TRUE(model("disturbed") == model("undisturbed"));
}

INSTANTIATE_TEST_SUITE_P(
    Shards, NarrowcastRunShardsTest,
    ::testing::Values(
        LostShard{"node", "--shard_optimizer=node --node_size=2", ""},
        LostShard{"auto", "--shard_optimizer=auto --node_size=2", ""},
        LostShard{"shared", "--shard_optimizer=node --share_parameters --node_size=2", ""},
        LostShard{"one_node", "--shard_optimizer=node", kLostOnOneNode},
        LostShard{"shared_on_one_node", "--shard_optimizer=node --share_parameters", kLostOnOneNode},
        LostShard{"all", "--shard_optimizer=all --node_size=2", "the optimizer is sharded over all ranks"},
        LostShard{"copies", "--shard_optimizer=all --shard_copies=2 --node_size=1", ""},
        LostShard{"exact_copies", "--shard_optimizer=all --shard_copies=2 --parameter_format=fp32 --node_size=2", ""}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast::testing
