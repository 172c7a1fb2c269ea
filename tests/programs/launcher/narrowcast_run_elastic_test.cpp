// Several launchers of one job, as separate processes on this machine: nodes that come and go.
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "tests/programs/launcher/node_commands.h"

namespace narrowcast::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class NarrowcastRunElasticTest : public NarrowcastRunNodesFixture {
 protected:
  // One launcher; all are started in the same way. The first one is the host.
  Words node(const std::string& nodes, const std::string& script, const Words& flags = {}) const {
    Words conf = quick();
    conf.back() += ",last_call_timeout=0.3";
    conf.insert(conf.end(), flags.begin(), flags.end());
    return launcher({"--nnodes", nodes, "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:" + port}, script, conf);
  }
};

// Once it is the host, launchers that start later are not. A launcher that may begin alone reports that it waits only
// if it waits for a noticeable time.
void wait_until_it_is_the_host(RunningProgram& launcher) {
  launcher.wait_for_either("1 node has joined", "rank 0 of 1");
}

// The launchers of two nodes in one round, the first as the host.
struct HostAndOther {
  explicit HostAndOther(const Words& node) : host(node) {
    wait_until_it_is_the_host(host);
    other.emplace(node);
    host.wait_for_output("rank 0 of 2");
    other->wait_for_output("rank 1 of 2");
  }
  RunningProgram host;
  std::optional<RunningProgram> other;
};

const std::string kWaitInARound = "echo round $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE; sleep 1000";
// The same, but the round with three ranks ends successfully.
const std::string kUntilThree =
    "echo round $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE; "
    "test $WORLD_SIZE = 3 && exit 0; sleep 1000";

// Otherwise the other rank would wait for its time-out.
TEST_F(NarrowcastRunElasticTest, NobodyWaitsForARankThatHasEndedBeforeTheOthersMet) {
  // As if all ranks were on one node: the store is at a loopback address.
  const std::string train = "export LOCAL_WORLD_SIZE=$WORLD_SIZE LOCAL_RANK=$RANK; exec " +
                            std::string(kNarrowcastTrain) + " --layers=1 --heads=2 --width=16 --context=16";
  RunningProgram host(node("2", train));
  wait_until_it_is_the_host(host);
  RunningProgram other(node("2", train + " --dry_run"));
  const ProgramEnd end = host.wait();
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr("missing rank 1: it has ended with exit code 0 (was it "));
  EXPECT_EQ(other.wait().exit_code, 3);
}

TEST_F(NarrowcastRunElasticTest, RunsAJobToItsEnd) {
  RunningProgram host(node("2", "echo $RANK of $WORLD_SIZE in $TORCHELASTIC_RUN_ID", {"--rdzv_id=job7"}));
  wait_until_it_is_the_host(host);
  const ProgramEnd other = run_to_end(node("2", "echo $RANK of $WORLD_SIZE", {"--rdzv_id=job7"}));
  EXPECT_EQ(other.exit_code, 0);
  const ProgramEnd end = host.wait();
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.output + other.output, HasSubstr("[0]: 0 of 2"));
  EXPECT_THAT(end.output + other.output, HasSubstr("[1]: 1 of 2"));
}

TEST_F(NarrowcastRunElasticTest, TakesNodesInAndGoesOnWithoutALostOne) {
  RunningProgram host(node("1:3", kUntilThree));
  wait_until_it_is_the_host(host);
  host.wait_for_output("round 0 rank 0 of 1");
  RunningProgram second(node("1:3", "echo pid $$; " + kUntilThree));
  host.wait_for_output("rank 0 of 2");  // restarted with the newcomer
  second.wait_for_output("rank 1 of 2");
  second.send(SIGKILL);
  host.wait_for_output("rank 0 of 1", 2);
  wait_until_gone(pids_after("pid ", second.wait().output).at(0));
  RunningProgram third(node("1:3", kUntilThree));
  RunningProgram fourth(node("1:3", kUntilThree));
  for (RunningProgram* const launcher : {&third, &fourth, &host}) {
    EXPECT_EQ(launcher->wait().exit_code, 0);
  }
  const std::string told = host.errors();
  EXPECT_THAT(told, ContainsRegex("narrowcast-run: .* \\(pid [0-9]+\\) joined; stopped 1 running rank\n"));
  EXPECT_THAT(told, ContainsRegex("node 1 \\(.*\\) was lost: no heartbeat for 4 s"));
}

TEST_F(NarrowcastRunElasticTest, LetsANodeLeave) {
  HostAndOther nodes(node("1:2", kWaitInARound));
  const int rounds_alone = count_of("rank 0 of 1", nodes.host.output());
  nodes.other->send(SIGTERM);
  EXPECT_EQ(nodes.other->wait().exit_code, 128 + SIGTERM);
  nodes.host.wait_for_output("rank 0 of 1", rounds_alone + 1);
  nodes.host.send(SIGINT);
  EXPECT_EQ(nodes.host.wait().exit_code, 128 + SIGINT);
}

TEST_F(NarrowcastRunElasticTest, EndsWhenTooFewAreLeft) {
  HostAndOther nodes(node("2", kWaitInARound, {quick().back() + ",join_timeout=8"}));
  nodes.other->send(SIGKILL);
  const ProgramEnd end = nodes.host.wait();
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr("not complete within 8 s: 1 node has joined of at least 2\n"));
}

TEST_F(NarrowcastRunElasticTest, EndsEverywhereWhenTheHostIsKilled) {
  HostAndOther nodes(node("1:2", kWaitInARound));
  nodes.host.send(SIGKILL);
  EXPECT_EQ(nodes.other->wait().exit_code, 3);
}

TEST_F(NarrowcastRunElasticTest, CountsFailuresOfAllNodesTogether) {
  const std::string script = "test $RANK = 1 && exit $((7 + TORCHELASTIC_RESTART_COUNT)); sleep 1000";
  RunningProgram host(node("2", script, {"--max_restarts=2"}));
  wait_until_it_is_the_host(host);
  const ProgramEnd other = run_to_end(node("2", script, {"--max_restarts=2"}));
  EXPECT_EQ(other.exit_code, 9);
  const ProgramEnd end = host.wait();
  EXPECT_EQ(end.exit_code, 9);
  EXPECT_EQ(count_of("restart ", end.errors), 2);
}

TEST_F(NarrowcastRunElasticTest, RefusesANodeOfAnotherJob) {
  RunningProgram host(node("1:2", kWaitInARound, {"--rdzv_id=mine"}));
  wait_until_it_is_the_host(host);
  host.wait_for_output("rank 0 of 1");
  const ProgramEnd end = run_to_end(node("1:2", kWaitInARound, {"--rdzv_id=yours"}));
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.output, "");
  EXPECT_THAT(end.errors, ContainsRegex("launchers disagree: --rdzv_id is mine on .*, but yours on "));
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 128 + SIGTERM);
}

TEST_F(NarrowcastRunElasticTest, RefusesToListenEverywhere) {
  const ProgramEnd end = run_to_end(
      launcher({"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=0.0.0.0:" + port}, "echo started", {}));
  expect_refused(
      end, "--rdzv_endpoint=0.0.0.0: means every address of this machine; give the address that the other nodes use");
}

TEST_F(NarrowcastRunElasticTest, KeepsASpareOfAFullJob) {
  HostAndOther nodes(node("2", kWaitInARound));
  RunningProgram spare(node("2", kWaitInARound));
  spare.wait_for_errors("waiting: the job runs with 2 nodes");
  nodes.other->send(SIGKILL);
  spare.wait_for_output("round 1 rank 1 of 2");
  nodes.host.send(SIGTERM);
  EXPECT_EQ(spare.wait().exit_code, 128 + SIGTERM);
}

}  // namespace
}  // namespace narrowcast::testing
