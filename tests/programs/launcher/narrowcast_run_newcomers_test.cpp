// Nodes that join a training whose ranks recover in place, while their own ranks start.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <ostream>
#include <string>

#include "tests/programs/launcher/node_commands.h"
#include "tests/programs/train_commands.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class NarrowcastRunNewcomersTest : public NarrowcastRunNodesFixture {
 protected:
  // A launcher with workers that run `script`. The first one is the host.
  Words node(const std::string& script, int workers = 1, const std::string& conf = "last_call_timeout=0.3",
             int most = 2, const std::string& recovery = "in_place") const {
    Words flags = quick();
    flags.back() += "," + conf;
    return launcher(
        {"--nnodes=1:" + std::to_string(most), "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:" + port}, script,
        flags + Words{"--recovery=" + recovery, "--max_restarts=3", "--nproc_per_node=" + std::to_string(workers)});
  }

  // As if all ranks were on one node: the store is at a loopback address.
  static std::string trainer() {
    return "export LOCAL_WORLD_SIZE=$WORLD_SIZE LOCAL_RANK=$RANK; exec " + std::string(kNarrowcastTrain);
  }

  // Runs a training that does not end by itself.
  std::string train(const Words& more = {}) const {
    std::string command = trainer();
    for (const std::string& flag : Words{"--model=char_gpt", "--layers=1", "--heads=2", "--width=16", "--context=16"} +
                                       Words{"--batch_size=8", "--steps=10000000", "--log_every=1", "--eval_every=0"} +
                                       Words{"--hook=none", "--output_dir=" + folder / "out"} + text_elsewhere() +
                                       more) {
      command += " " + flag;
    }
    return command;
  }

  int steps() const {
    const std::string metrics = folder / "out/metrics.jsonl";
    return std::filesystem::exists(metrics) ? count_of("\"event\":\"step\"", files::read_file(metrics)) : 0;
  }
  void wait_for_steps(int more) const {
    const int before = steps();
    wait_until([&] { return steps() >= before + more; });
  }
};

TEST_F(NarrowcastRunNewcomersTest, AreTakenInWhenTheirRanksAreReady) {
  RunningProgram host(node(train()));
  wait_for_steps(3);
  RunningProgram newcomer(node("while [ ! -e " + folder / "go" + " ]; do sleep 0.05; done; " + train()));
  host.wait_for_errors("joined: goes on with 2 ranks on 2 nodes");
  wait_for_steps(20);
  EXPECT_THAT(host.errors(), Not(HasSubstr("recovered: ")));
  folder.write("go", "");
  host.wait_for_errors("recovered: 2 ranks instead of 1");
  wait_for_steps(3);
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

TEST_F(NarrowcastRunNewcomersTest, GetAnotherProcessForOneThatCrashesWhileItStarts) {
  RunningProgram host(node(train()));
  wait_for_steps(3);
  const std::string tried = folder / "tried";
  RunningProgram newcomer(node("test -e " + tried + " || { touch " + tried + "; exit 1; }; " + train()));
  newcomer.wait_for_errors("a new process takes its place (1 of --max_restarts=3 within an hour)");
  host.wait_for_errors("recovered: 2 ranks instead of 1");
  EXPECT_EQ(count_of("recovered: ", host.errors()), 1) << "the crash was no loss: " << host.errors();
  wait_for_steps(3);
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

TEST_F(NarrowcastRunNewcomersTest, AreNotWaitedForWhenARankIsLost) {
  RunningProgram host(node("echo $$ >" + folder / "pid" + "$RANK; " + train(), 2));
  wait_for_steps(3);
  RunningProgram newcomer(node("while [ ! -e " + folder / "go" + " ]; do sleep 0.05; done; " + train(), 2));
  host.wait_for_errors("joined: goes on with 4 ranks on 2 nodes");
  wait_for_steps(3);
  ASSERT_EQ(::kill(std::stoi(files::read_file(folder / "pid1")), SIGKILL), 0);
  host.wait_for_errors("recovered: rank 1 is new");
  wait_for_steps(3);
  folder.write("go", "");
  host.wait_for_errors("recovered: 4 ranks instead of 2");
  wait_for_steps(3);
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

// 2 and 6 ranks can share a batch of 18; 4 cannot. The launchers then count 4, also for the new process.
TEST_F(NarrowcastRunNewcomersTest, WaitUntilTheBatchCanBeSharedWithThem) {
  const auto joins = [&] {
    return node("echo $$ >" + folder / "pid" + "$RANK; " + train({"--batch_size=18"}), 2, "last_call_timeout=0.3", 3);
  };
  RunningProgram host(joins());
  wait_for_steps(3);
  RunningProgram first(joins());
  host.wait_for_errors("waits until more nodes join: the number of ranks must divide 18");
  wait_for_steps(10);
  ASSERT_EQ(::kill(std::stoi(files::read_file(folder / "pid1")), SIGKILL), 0);
  host.wait_for_errors("recovered: rank 1 is new");
  wait_for_steps(10);
  RunningProgram second(joins());
  host.wait_for_errors("recovered: 6 ranks instead of 2");
  wait_for_steps(10);
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

class NarrowcastRunLastNodeTest : public NarrowcastRunNewcomersTest, public ::testing::WithParamInterface<int> {};

// With second copies of shards. Nothing writes checkpoints.
TEST_P(NarrowcastRunLastNodeTest, TrainsOnWithOneCopyUntilAnotherNodeJoins) {
  const std::string ranks = std::to_string(GetParam());
  const std::string script =
      train(Words{"--shard_optimizer=all", "--shard_copies=2", "--hook=int8", "--link_gbit=1", "--link_us=100"} +
            Words{"--check_replicas_every=1", "--node_size=" + ranks});
  RunningProgram host(node(script, GetParam(), "last_call_timeout=60,is_host=true"));
  RunningProgram other(node(script, GetParam(), "is_host=false"));
  wait_for_steps(20);
  other.send(SIGKILL);
  host.wait_for_errors("warning: " + (GetParam() == 1 ? "shard_optimizer: one rank is left"
                                                      : "shard_copies: all " + ranks + " ranks that are left are on"));
  host.wait_for_errors("recovered: " + ranks + (GetParam() == 1 ? " rank" : " ranks") + " instead of ");
  wait_for_steps(20);
  RunningProgram newcomer(node(script, GetParam(), "is_host=false"));
  host.wait_for_errors("recovered: " + std::to_string(2 * GetParam()) + " ranks instead of " + ranks);
  wait_for_steps(20);
  EXPECT_THAT(host.errors(), Not(HasSubstr("cannot recover")));
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NarrowcastRunLastNodeTest, ::testing::Values(1, 2));

class NarrowcastRunQuorumTest : public NarrowcastRunNewcomersTest, public ::testing::WithParamInterface<std::string> {};

// Three sites, of which two are lost, and one comes back. Nobody changes a flag.
TEST_P(NarrowcastRunQuorumTest, GoesOnWithFewerSitesThanTheQuorum) {
  const std::string script = train({"--hook=post_local_sgd", "--batch_size=6", "--sync_every=4", "--outer_quorum=2",
                                    "--outer_grace_seconds=0.5", "--local_group=none", "--checkpoint_every=40",
                                    "--checkpoint_dir=" + folder / "checkpoints"});
  const auto joins = [&](const std::string& conf) { return node(script, 1, conf, 3, GetParam()); };
  RunningProgram host(joins("last_call_timeout=60,is_host=true"));
  RunningProgram second(joins("is_host=false"));
  RunningProgram third(joins("is_host=false"));
  const auto wait_for_checkpoints = [&](int more) {
    const int before = count_of("\"event\":\"checkpoint\"", files::read_file(folder / "out/metrics.jsonl"));
    wait_until([&] {
      return count_of("\"event\":\"checkpoint\"", files::read_file(folder / "out/metrics.jsonl")) >= before + more;
    });
  };
  wait_for_steps(3);
  wait_for_checkpoints(2);
  third.send(SIGKILL);
  host.wait_for_errors("warning: outer_quorum: is 2, but there are 2 groups, so outer steps wait for all until");
  wait_for_checkpoints(2);
  second.send(SIGKILL);
  host.wait_for_errors("warning: outer_quorum: is 2, but there is one group, so it has no effect until");
  wait_for_checkpoints(2);
  RunningProgram newcomer(joins("is_host=false"));
  host.wait_for_errors("warning: outer_quorum: is 2, but there are 2 groups", 2);
  wait_for_checkpoints(2);
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

INSTANTIATE_TEST_SUITE_P(Recoveries, NarrowcastRunQuorumTest, ::testing::Values("in_place", "restart"),
                         [](const auto& info) { return info.param; });

// A newcomer whose ranks cannot work with the others.
struct Misfit {
  std::string name;
  std::string flag;
  std::string error;
};

void PrintTo(const Misfit& value, std::ostream* out) { *out << value.name; }

class NarrowcastRunMisfitsTest : public NarrowcastRunNewcomersTest, public ::testing::WithParamInterface<Misfit> {};

TEST_P(NarrowcastRunMisfitsTest, EndAlone) {
  RunningProgram host(node(train()));
  wait_for_steps(3);
  const std::string command = GetParam().flag.starts_with("--verify") ? trainer() : train();
  const ProgramEnd ended = run_to_end(node(command + " " + GetParam().flag));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.errors, HasSubstr("narrowcast-run: the others go on without this node: " + GetParam().error));
  host.wait_for_errors("was removed: its ranks did not start: goes on with 1 rank");
  wait_for_steps(20);
  EXPECT_THAT(host.errors(), Not(HasSubstr("recovered: "))) << "no step was hurt";
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

INSTANTIATE_TEST_SUITE_P(
    Misfits, NarrowcastRunMisfitsTest,
    ::testing::Values(Misfit{"dry_run", "--dry_run", "its ranks ended with exit code 0 before they joined the others"},
                      Misfit{"verification", "--verify_gradients", "verify_gradients: this node comes to a job"},
                      Misfit{"wrong_flag", "--layers=0", "char_gpt: option layers must be in "}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast::testing
