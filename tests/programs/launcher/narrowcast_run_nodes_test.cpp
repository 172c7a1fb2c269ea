// Several launchers of one job, as separate processes on this machine: fixed nodes.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/launcher/node_commands.h"
#include "tests/support/is_running.h"
#include "tests/support/patience.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class NarrowcastRunNodesTest : public NarrowcastRunNodesFixture {
 protected:
  // The launcher of one of `nodes` nodes, with `nproc` workers that run `script`.
  Words node(int nodes, int node_rank, const std::string& script, const Words& flags = {}) const {
    return launcher({"--nnodes=" + std::to_string(nodes), "--node_rank=" + std::to_string(node_rank),
                     "--master_addr=127.0.0.1", "--master_port=" + port},
                    script, flags);
  }
};

// The launchers of two nodes whose workers have printed "pid ID" and wait until they are stopped.
struct WaitingNodes {
  WaitingNodes(const Words& node0, const Words& node1) : first(node0), second(node1) {
    first.wait_for_output("pid ");
    second.wait_for_output("pid ");
  }
  RunningProgram first;
  RunningProgram second;
};

const std::string kWait = "echo pid $$; sleep 1000";

TEST_F(NarrowcastRunNodesTest, GiveEachWorkerItsPlace) {
  const std::string script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE";
  RunningProgram second(node(2, 1, script, {"--nproc_per_node=1"}));
  const ProgramEnd first = run_to_end(node(2, 0, script, {"--nproc_per_node=2"}));
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_EQ(lines_with("[0]: ", first.output), Words{"0/3 0/2 0/2"});
  EXPECT_EQ(lines_with("[1]: ", first.output), Words{"1/3 1/2 0/2"});
  EXPECT_EQ(second.wait().output, "[2]: 2/3 0/1 1/2\n");
}

TEST_F(NarrowcastRunNodesTest, MeetAtAnIPv6Address) {
  const std::string script = "echo $RANK at $MASTER_ADDR";
  const Words at_endpoint = {"--nnodes=2:2", "--rdzv_backend=c10d", "--rdzv_endpoint=[::1]:" + port};
  for (const auto& [node0, node1] :
       {std::pair(Words{"--nnodes=2", "--master_addr=[::1]:" + port, "--node_rank=0"},
                  Words{"--nnodes=2", "--master_addr=[::1]", "--master_port=" + port, "--node_rank=1"}),
        std::pair(at_endpoint, at_endpoint)}) {
    RunningProgram second(launcher(node1, script, {}));
    const ProgramEnd first = run_to_end(launcher(node0, script, {}));
    EXPECT_EQ(first.exit_code, 0) << first.errors;
    EXPECT_THAT(first.output + second.wait().output, AllOf(HasSubstr("[0]: 0 at ::1\n"), HasSubstr("[1]: 1 at ::1\n")));
  }
}

// The launcher's store, and rank 0's.
TEST_F(NarrowcastRunNodesTest, RanksMeetAtAnIPv6Address) {
  const Words train = {kNarrowcastTrain, "--steps=2",         "--layers=1",  "--width=32",
                       "--context=16",   "--sample_length=0", "--hook=int8", "--node_size=1"};
  Words one_node = {kRun, "--nproc_per_node=2", "--master_addr=[::1]"};
  one_node.insert(one_node.end(), train.begin(), train.end());
  const ProgramEnd launched = run_to_end(one_node);
  EXPECT_EQ(launched.exit_code, 0) << launched.errors;
  const auto rank = [&](const std::string& number, const Words& master) {
    Words words = train;
    words.insert(words.end(), {"--rank=" + number, "--world_size=2"});
    words.insert(words.end(), master.begin(), master.end());
    return words;
  };
  RunningProgram second(rank("1", {"--master_addr=[::1]", "--master_port=" + port}));
  const ProgramEnd first = run_to_end(rank("0", {"--master_addr=[::1]:" + port}));
  EXPECT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_EQ(second.wait().exit_code, 0);
}

// Another service uses the master's port, or the process that serves the store is stopped.
TEST_F(NarrowcastRunNodesTest, ARankThatFindsNoStoreEndsWithinItsTimeOut) {
  const network::ListeningSocket silent = loopback_socket();
  const ProgramEnd end =
      run_to_end({kNarrowcastTrain, "--steps=2", "--rank=1", "--world_size=2", "--master_addr=127.0.0.1",
                  "--master_port=" + std::to_string(silent.port()), "--timeout_seconds=1"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr("narrowcast-train: rank 1: reaching the store at 127.0.0.1:" +
                                    std::to_string(silent.port()) + " failed: it does not answer as a store"));
}

TEST_F(NarrowcastRunNodesTest, ALauncherThatFindsNoStoreEnds) {
  const network::ListeningSocket silent = loopback_socket();
  const std::string place = std::to_string(silent.port());
  const ProgramEnd end =
      run_to_end(launcher({"--nnodes=2", "--node_rank=1", "--master_addr=127.0.0.1", "--master_port=" + place}, "true",
                          {"--rdzv_conf=read_timeout=0.3"}));
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr("the store at 127.0.0.1:" + place + ": it does not answer as a store"));
}

TEST_F(NarrowcastRunNodesTest, RestartTogetherWhenAWorkerOfOneFails) {
  const std::string script = "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; test $RANK = 1 && exit 7; sleep 1000";
  RunningProgram second(node(2, 1, script, {"--max_restarts=1"}));
  const ProgramEnd first = run_to_end(node(2, 0, script, {"--max_restarts=1"}));
  EXPECT_EQ(first.exit_code, 0);
  const ProgramEnd last = second.wait();
  EXPECT_EQ(last.exit_code, 0);
  for (const ProgramEnd& end : {first, last}) {
    EXPECT_THAT(end.errors, AllOf(ContainsRegex("rank 1 on node 1 \\(.*\\) \\(pid [0-9]+\\) failed first: exit code 7"),
                                  HasSubstr("restart 1 (--max_restarts=1): 2 ranks on 2 nodes")));
  }
}

TEST_F(NarrowcastRunNodesTest, AllTellOfTheFirstFailure) {
  const std::string script = "test $RANK = 2 && { echo out of luck >&2; kill -SEGV $$; }; sleep 1000";
  RunningProgram second(node(3, 1, script));
  RunningProgram third(node(3, 2, script));
  const ProgramEnd first = run_to_end(node(3, 0, script));
  for (const ProgramEnd& end : {first, second.wait(), third.wait()}) {
    EXPECT_EQ(end.exit_code, 128 + SIGSEGV);
    EXPECT_THAT(end.errors,
                AllOf(HasSubstr("rank 2 on node 2 ("), HasSubstr("signal SIGSEGV (Segmentation fault)"),
                      HasSubstr("; stopped 2 running ranks\n"), HasSubstr("narrowcast-run:     out of luck\n")));
  }
}

// TCPStore closes a connection that sends more than 8 MiB. A progress bar's output, which needs no newline, would far
// exceed that if it were sent unchanged: JSON has two bytes for each carriage return.
TEST_F(NarrowcastRunNodesTest, TellOfAFailureWithEndlessLastLines) {
  const std::string script =
      R"(test $RANK = 1 || sleep 1000
         { head -c 1100000 /dev/zero | tr '\0' x; echo
           head -c 12000000 /dev/zero | tr '\0' '\r'; printf '99%%\r'; } >&2
         exit 7)";
  RunningProgram first(node(2, 0, script));
  RunningProgram second(node(2, 1, script));
  const ProgramEnd failed = second.wait();  // Its output is larger than a pipe's buffer, so it is read first.
  for (const ProgramEnd& end : {failed, first.wait()}) {
    EXPECT_EQ(end.exit_code, 7);
    EXPECT_THAT(end.errors, AllOf(HasSubstr("rank 1 on node 1 ("), HasSubstr("xxx ... (1095944 more bytes)\n"),
                                  HasSubstr("narrowcast-run:     99%\n")));
  }
}

TEST_F(NarrowcastRunNodesTest, EndWhenALauncherIsKilled) {
  WaitingNodes nodes(node(2, 0, kWait, quick()), node(2, 1, kWait, quick()));
  nodes.second.send(SIGKILL);
  const ProgramEnd end = nodes.first.wait();
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, ContainsRegex("node 1 \\(.*\\) was lost: no heartbeat for 4 s; stopped 1 running rank\n"));
  wait_until_gone(pids_after("pid ", nodes.second.wait().output).at(0));
}

TEST_F(NarrowcastRunNodesTest, EndWhenTheLauncherOfNodeZeroIsKilled) {
  WaitingNodes nodes(node(2, 0, kWait, quick()), node(2, 1, kWait, quick()));
  nodes.first.send(SIGKILL);
  const ProgramEnd end = nodes.second.wait();
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr("narrowcast-run: the store at 127.0.0.1:" + port +
                                    ": the launcher that served it has ended or was killed\n"));
  EXPECT_FALSE(is_running(pids_after("pid ", end.output).at(0)));
}

TEST_F(NarrowcastRunNodesTest, EndWhenALauncherHangs) {
  WaitingNodes nodes(node(2, 0, kWait, quick()), node(2, 1, kWait, quick()));
  nodes.first.send(SIGSTOP);
  const ProgramEnd end = nodes.second.wait();
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr(": no answer; the launcher that serves it hangs, or the network is down\n"));
  nodes.first.send(SIGCONT);
  EXPECT_EQ(nodes.first.wait().exit_code, 3);
}

TEST_F(NarrowcastRunNodesTest, StopTogetherAtASignalToOne) {
  WaitingNodes nodes(node(2, 0, kWait), node(2, 1, kWait));
  nodes.second.send(SIGTERM);
  for (RunningProgram* const launcher : {&nodes.first, &nodes.second}) {
    const ProgramEnd end = launcher->wait();
    EXPECT_EQ(end.exit_code, 128 + SIGTERM);
    EXPECT_THAT(end.errors, HasSubstr("narrowcast-run: stopped by SIGTERM on node 1 ("));
  }
}

TEST_F(NarrowcastRunNodesTest, StopAtASignalWhileTheyWait) {
  RunningProgram first(node(2, 0, "echo ready"));
  first.wait_for_errors("missing: --node_rank 1");
  first.send(SIGINT);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGINT);
}

TEST_F(NarrowcastRunNodesTest, RefuseTwoOfTheSameRankEverywhere) {
  RunningProgram first(node(3, 0, "echo started"));
  RunningProgram second(node(3, 1, "echo started"));
  const ProgramEnd twin = run_to_end(node(3, 1, "echo started"));
  for (const ProgramEnd& end : {first.wait(), second.wait(), twin}) {
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(end.output, "");
    EXPECT_THAT(end.errors, ContainsRegex("two launchers were given --node_rank=1: .* \\(pid [0-9]+\\) and .*"));
  }
}

TEST_F(NarrowcastRunNodesTest, RefuseContradictionsEverywhere) {
  RunningProgram first(node(2, 0, "echo started", {"--max_restarts=1"}));
  const ProgramEnd second = run_to_end(node(2, 1, "echo started", {"--max_restarts=2"}));
  for (const ProgramEnd& end : {first.wait(), second}) {
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(end.output, "");
    EXPECT_THAT(end.errors, ContainsRegex("launchers disagree: --max_restarts is 1 on node 0, .*, but 2 on node 1, "));
  }
}

TEST_F(NarrowcastRunNodesTest, GiveUpAMasterThatCannotBeReached) {
  const ProgramEnd end = run_to_end(node(2, 1, "echo started", {"--rdzv_conf=read_timeout=0.3"}));
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(end.output, "");
  EXPECT_THAT(end.errors, HasSubstr("the store at 127.0.0.1:" + port + ": cannot be reached: Connection refused\n"));
}

TEST_F(NarrowcastRunNodesTest, GiveUpNodesThatDoNotCome) {
  const ProgramEnd end = run_to_end(node(2, 0, "echo started", {"--rdzv_conf=join_timeout=0.3"}));
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr("not complete within 0.3 s: 1 of 2 nodes have joined; missing: --node_rank 1\n"));
}

TEST_F(NarrowcastRunNodesTest, TellOfAProgramThatOneOfThemCannotStart) {
  Words other = node(2, 1, "");
  other.resize(other.size() - 3);
  other.push_back(folder.write("text", "no program"));
  std::filesystem::permissions(other.back(), std::filesystem::perms::owner_all);
  RunningProgram first(node(2, 0, "sleep 1000"));
  const ProgramEnd second = run_to_end(other);
  EXPECT_EQ(second.exit_code, 2);
  const ProgramEnd end = first.wait();
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, ContainsRegex("node 1 \\(.*\\): .*/text: cannot be executed: Exec format error"));
}

TEST_F(NarrowcastRunNodesTest, RefuseAPortInUse) {
  RunningProgram first(node(2, 0, "echo started"));
  first.wait_for_errors("missing: --node_rank 1");
  expect_refused(run_to_end(node(2, 0, "echo started")),
                 "--master_port=" + port + ": cannot be used: Address already in use");
}

TEST_F(NarrowcastRunNodesTest, KnowEachOtherByASecret) {
  const std::string secret = folder.write("secret", "what only this job knows");
  chmod(secret.c_str(), 0600);
  const std::string script = "echo $RANK is told of $NARROWCAST_SECRET_FILE";
  RunningProgram second(node(2, 1, script, {"--secret_file=" + secret}));
  const ProgramEnd first = run_to_end(node(2, 0, script, {"--secret_file=" + secret}));
  EXPECT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_EQ(first.output, "[0]: 0 is told of " + secret + "\n");
  EXPECT_EQ(second.wait().output, "[1]: 1 is told of " + secret + "\n");
  EXPECT_THAT(first.errors, Not(HasSubstr("another process wrote")));
}

// Ranks prove to each other that they know the secret before they train.
TEST_F(NarrowcastRunNodesTest, TellTheTrainersRanksOfTheirSecret) {
  const std::string secret = folder.write("secret", "what only this job knows");
  chmod(secret.c_str(), 0600);
  const auto train = [&](const std::string& before) {
    return run_to_end({kRun, "--nproc_per_node=2", "--secret_file=" + secret, "sh", "-c",
                       before + " exec " + kNarrowcastTrain +
                           " --steps=2 --layers=1 --width=32 --context=16 --sample_length=0 --hook=int8"});
  };
  EXPECT_EQ(train("").exit_code, 0);
  const ProgramEnd end = train("test $RANK = 1 && export NARROWCAST_SECRET_FILE=;");
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("NARROWCAST_SECRET_FILE differs between ranks: rank 0 has given, rank 1 has not "
                                    "given"));
}

// The stranger writes some fifty times between two signs of a launcher, for longer than the heartbeat timeout of a job,
// until the workers end by themselves.
TEST_F(NarrowcastRunNodesTest, AStrangerWhoOverwritesTheirSignsEndsNothing) {
  const std::string secret = folder.write("secret", "what only this job knows");
  chmod(secret.c_str(), 0600);
  const std::string script = "echo pid $$; while ! test -e " + folder / "end" + "; do sleep 0.05; done";
  const Words flags = {"--secret_file=" + secret, quick().at(0)};
  WaitingNodes nodes(node(2, 0, script, flags), node(2, 1, script, flags));
  const network::TcpStorePtr stranger = network::reach_tcp_store("127.0.0.1", std::stol(port), kPatience);
  const auto end_of_attack = std::chrono::steady_clock::now() + 3 * kSilence / 2;
  while (std::chrono::steady_clock::now() < end_of_attack) {
    for (const char* const name : {"node/1/beat", "node/2/beat", "steps"}) {
      stranger->set("narrowcast-run/" + std::string(name), std::vector<uint8_t>{'7'});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  folder.write("end", "");
  const ProgramEnd first = nodes.first.wait();
  EXPECT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_THAT(first.errors, HasSubstr("another process wrote to the launchers' store"));
  EXPECT_EQ(nodes.second.wait().exit_code, 0);
}

TEST_F(NarrowcastRunNodesTest, DoNotMeetWhereTheirSecretsDiffer) {
  const auto with_secret = [&](int rank, const std::string& text) {
    const std::string file = folder.write("secret" + std::to_string(rank), text);
    chmod(file.c_str(), 0600);
    return node(2, rank, "true", {"--secret_file=" + file, "--rdzv_conf=join_timeout=4,read_timeout=2"});
  };
  RunningProgram second(with_secret(1, "what another job knows"));
  const ProgramEnd first = run_to_end(with_secret(0, "what only this job knows"));
  EXPECT_EQ(first.exit_code, 3);
  EXPECT_THAT(first.errors, HasSubstr("not complete within 4 s: 1 of 2 nodes have joined"));
  const ProgramEnd end = second.wait();
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, HasSubstr("the store there does not belong to narrowcast-run with this job's secret"));
}

}  // namespace
}  // namespace narrowcast::testing
