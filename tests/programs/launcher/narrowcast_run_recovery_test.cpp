// narrowcast-run with real processes: a new process takes the place of one that failed.
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/programs/launcher/node_commands.h"
#include "tests/support/patience.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// The first process of rank 1 runs `first`. The test ends the other processes of the job.
class NarrowcastRunRecoveryTest : public NarrowcastRunNodesFixture {
 protected:
  std::string script(const std::string& first) const {
    return "echo rank $RANK pid $$ count $TORCHELASTIC_RESTART_COUNT recovery $NARROWCAST_RECOVERY; "
           "if test $RANK$TORCHELASTIC_RESTART_COUNT = 10; then " +
           first + "; fi; while ! test -e " + folder / "end" + "; do sleep 0.02; done; echo rank $RANK pid $$ ends";
  }
  Words in_place(int ranks, const std::string& first, const Words& flags = {}) const {
    Words all = {"--recovery=in_place", "--max_restarts=3", "--rdzv_id=job7", "--master_port=" + port};
    all.insert(all.end(), flags.begin(), flags.end());
    return command(ranks, script(first), all);
  }
  // Lets all workers end.
  ProgramEnd end(RunningProgram& launcher) const {
    folder.write("end", "");
    return launcher.wait();
  }
  // The job's store as its ranks see it.
  network::TcpStorePtr store() const { return network::reach_tcp_store("127.0.0.1", std::stol(port), kPatience); }
  static std::string key(const std::string& name) { return rendezvous::job_prefix("job7") + "/" + name; }
  static void report_silent(c10d::Store& store, const rendezvous::RankOfNode& rank, const std::string& starts) {
    store.set(key(rendezvous::silent_key(rank.node, rank.rank_on_node)),
              std::vector<uint8_t>(starts.begin(), starts.end()));
  }
  static std::string starts(c10d::Store& store) { return store.get_to_str(key(rendezvous::kStarts)); }
};

TEST_F(NarrowcastRunRecoveryTest, ReplacesTheRankThatDiedAndNoOther) {
  RunningProgram launcher(in_place(3, "kill -KILL $$"));
  launcher.wait_for_output("count 1 recovery in_place");
  const auto job_store = store();
  EXPECT_EQ(starts(*job_store), "1");
  const ProgramEnd ended = end(launcher);
  EXPECT_EQ(ended.exit_code, 0);
  for (const std::string rank : {"0", "2"}) {
    const Words lines = lines_with("[" + rank + "]: rank " + rank + " pid ", ended.output);
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_THAT(lines[0], HasSubstr(" count 0 recovery in_place"));
    EXPECT_EQ(std::stol(lines[0]), std::stol(lines[1])) << "the process is the same";
  }
  const std::vector<pid_t> pids = pids_after("rank 1 pid ", ended.output);
  ASSERT_EQ(pids.size(), 3U);
  EXPECT_NE(pids[0], pids[1]);
  EXPECT_EQ(pids[1], pids[2]);
  EXPECT_THAT(ended.errors, AllOf(HasSubstr("narrowcast-run: rank 1 (pid " + std::to_string(pids[0]) +
                                            ") was ended by SIGKILL; a new process takes its place (1 of "
                                            "--max_restarts=3 within an hour)\n"),
                                  Not(HasSubstr("failed first"))));
}

TEST_F(NarrowcastRunRecoveryTest, ReplacesSeveralThatFailAtOnce) {
  const std::string all =
      "echo rank $RANK count $TORCHELASTIC_RESTART_COUNT; test $TORCHELASTIC_RESTART_COUNT = 0 "
      "&& exit 5; while ! test -e " +
      folder / "end" + "; do sleep 0.02; done";
  RunningProgram launcher(command(3, all, {"--recovery=in_place", "--max_restarts=3"}));
  for (const char* const count : {"count 1", "count 2", "count 3"}) {
    launcher.wait_for_output(count);
  }
  EXPECT_EQ(end(launcher).exit_code, 0);
}

TEST_F(NarrowcastRunRecoveryTest, GivesEachProcessItsFiles) {
  RunningProgram launcher(
      in_place(2, "echo last words >&2; kill -KILL $$", {"--log_dir=" + folder / "logs", "--tee=3"}));
  launcher.wait_for_output("count 1");
  const ProgramEnd ended = end(launcher);
  EXPECT_THAT(ended.errors, HasSubstr("narrowcast-run: its standard error is in "));
  EXPECT_EQ(count_of("last words", ended.errors), 1);
  const std::filesystem::path logs = std::filesystem::directory_iterator(folder / "logs")->path();
  Words files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(logs)) {
    if (entry.path().filename() == "stdout.log") {
      files.push_back(std::filesystem::relative(entry.path(), logs));
    }
  }
  EXPECT_THAT(files,
              UnorderedElementsAre("attempt_0/0/stdout.log", "attempt_0/1/stdout.log", "attempt_0.1/1/stdout.log"));
}

TEST_F(NarrowcastRunRecoveryTest, EndsFirstWhatTheRankLeft) {
  const std::string left = folder / "left";
  const std::string first = "setsid sleep 1000 & echo $! > " + left + "; sleep 1000 & echo $! >> " + left + "; exit 7";
  const std::string later = "for pid in $(cat " + left + "); do kill -0 $pid 2>&- && echo alive; done; echo looked";
  RunningProgram launcher(command(2,
                                  "if test $RANK$TORCHELASTIC_RESTART_COUNT = 10; then " + first +
                                      "; fi; test $RANK = 0 || { " + later + "; }; while ! test -e " + folder / "end" +
                                      "; do sleep 0.02; done",
                                  {"--recovery=in_place", "--max_restarts=3"}));
  launcher.wait_for_output("looked");
  EXPECT_THAT(end(launcher).output, Not(HasSubstr("alive")));
}

TEST_F(NarrowcastRunRecoveryTest, EndsWithTheFailureThatIsOneTooMany) {
  const ProgramEnd ended = run(2, "test $RANK = 0 && sleep 1000; exit $((10 + TORCHELASTIC_RESTART_COUNT))",
                               {"--recovery=in_place", "--max_restarts=2"});
  EXPECT_EQ(ended.exit_code, 12);
  EXPECT_EQ(count_of("a new process takes its place", ended.errors), 2);
  EXPECT_THAT(ended.errors,
              AllOf(ContainsRegex("rank 1 \\(pid [0-9]+\\) failed first: exit code 12, .*; stopped 1 running rank\n"),
                    Not(HasSubstr("restart 1"))));
}

TEST_F(NarrowcastRunRecoveryTest, EndsWithTheFailureThatTheNewProcessWasToMend) {
  const std::string outer = folder / "outer.json";
  const std::string again =
      R"(echo '{"message": "exists already", "restart": false}' > $TORCHELASTIC_ERROR_FILE; exit 1)";
  const ProgramEnd ended = run_to_end(
      command(2, "test $RANK = 0 && sleep 1000; test $TORCHELASTIC_RESTART_COUNT = 0 && kill -KILL $$; " + again,
              {"--recovery=in_place", "--max_restarts=8"}),
      {{"TORCHELASTIC_ERROR_FILE", outer}});
  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  EXPECT_EQ(count_of("a new process takes its place", ended.errors), 1);
  EXPECT_THAT(ended.errors, AllOf(HasSubstr("narrowcast-run: its error: exists already\n"),
                                  HasSubstr("narrowcast-run: not restarted, because it would fail in the same way\n"),
                                  HasSubstr("the failure that caused this restart, and that ends the job:"),
                                  Not(HasSubstr("restart 1"))));
  EXPECT_TRUE(std::filesystem::exists(outer));
}

TEST_F(NarrowcastRunRecoveryTest, StartsAllAgainAfterARankHasEnded) {
  RunningProgram launcher(
      command(2,
              "test $TORCHELASTIC_RESTART_COUNT$RANK = 01 || exit 0; echo waits; while ! test -e " + folder / "end" +
                  "; do sleep 0.02; done; exit 7",
              {"--recovery=in_place", "--max_restarts=1", "--rdzv_id=job7", "--master_port=" + port}));
  launcher.wait_for_output("waits");
  store()->wait({key(rendezvous::kEndedRank)}, kPatience);
  const ProgramEnd ended = end(launcher);
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.errors, AllOf(HasSubstr("failed first: exit code 7"), HasSubstr("restart 1 (--max_restarts=1)"),
                                  Not(HasSubstr("takes its place"))));
}

TEST_F(NarrowcastRunRecoveryTest, PassesASignalOnToOldAndNewProcesses) {
  RunningProgram launcher(in_place(2, "kill -KILL $$"));
  launcher.wait_for_output("count 1");
  launcher.send(SIGTERM);
  const ProgramEnd ended = launcher.wait();
  EXPECT_EQ(ended.exit_code, 128 + SIGTERM);
  EXPECT_THAT(ended.errors, HasSubstr("stopped by SIGTERM; stopped 2 running ranks"));
}

TEST_F(NarrowcastRunRecoveryTest, KillsARankThatOthersFindSilent) {
  RunningProgram launcher(in_place(2, "trap '' QUIT; echo hangs; sleep 1000"));
  launcher.wait_for_output("hangs");
  const auto job_store = store();
  report_silent(*job_store, {.rank_on_node = 1}, "0");
  launcher.wait_for_output("count 1");
  EXPECT_EQ(starts(*job_store), "1");
  EXPECT_FALSE(job_store->check({key(rendezvous::silent_key(0, 1))}));
  report_silent(*job_store, {.rank_on_node = 1}, "0");  // The report comes late: it is about the first process.
  job_store->wait({key(rendezvous::silent_key(0, 1))}, kPatience);
  report_silent(*job_store, {.rank_on_node = 0}, "1");
  launcher.wait_for_output("rank 0", 2);  // Rank 0 is replaced, so the launcher has read both reports.
  EXPECT_EQ(starts(*job_store), "2");
  const ProgramEnd ended = end(launcher);
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(count_of("rank 1 is silent", ended.errors), 1);
  EXPECT_THAT(ended.errors, HasSubstr("narrowcast-run: rank 1 is silent for other ranks: it is killed\n"));
  EXPECT_THAT(ended.errors, ContainsRegex("rank 1 \\(pid [0-9]+\\) was ended by SIGKILL; a new process"));
}

TEST_F(NarrowcastRunRecoveryTest, LetsASilentRankPrintWhereItWaits) {
  RunningProgram launcher(
      in_place(2, "trap 'echo a stack >&2; exit 9' QUIT; echo waits; while true; do sleep 0.1; done"));
  launcher.wait_for_output("waits");
  const auto job_store = store();
  report_silent(*job_store, {.rank_on_node = 1}, "0");
  launcher.wait_for_output("count 1");
  EXPECT_THAT(end(launcher).errors, AllOf(HasSubstr("[1]: a stack\n"),
                                          ContainsRegex("rank 1 \\(pid [0-9]+\\) ended with exit code 9; a new")));
}

TEST_F(NarrowcastRunRecoveryTest, RestartLeavesNoVariable) {
  const Words restart = command(1, "echo recovery ${NARROWCAST_RECOVERY-none}", {"--max_restarts=1"});
  EXPECT_EQ(run_to_end(restart, {{"NARROWCAST_RECOVERY", "in_place"}}).output, "[0]: recovery none\n");
}

// Two nodes of one rank each.
class NarrowcastRunRecoveryOnNodesTest : public NarrowcastRunRecoveryTest {
 protected:
  Words node(int node_rank, const std::string& first, const Words& flags = {"--recovery=in_place"}) const {
    Words all = {"--max_restarts=3", "--rdzv_id=job7"};
    all.insert(all.end(), flags.begin(), flags.end());
    return launcher(
        {"--nnodes=2", "--node_rank=" + std::to_string(node_rank), "--master_addr=127.0.0.1", "--master_port=" + port},
        script(first), all);
  }
};

TEST_F(NarrowcastRunRecoveryOnNodesTest, OneLauncherActsAlone) {
  const std::string hang = "trap '' QUIT; echo hangs; sleep 1000";
  RunningProgram first(node(0, hang));
  RunningProgram second(node(1, hang));
  first.wait_for_output("rank 0 pid ");
  second.wait_for_output("hangs");
  const auto job_store = store();
  report_silent(*job_store, {.node = 2}, "0");
  second.wait_for_output("count 1");
  EXPECT_EQ(starts(*job_store), "1");
  kill(pids_after("rank 1 pid ", second.output()).back(), SIGKILL);
  second.wait_for_output("count 2");
  EXPECT_EQ(starts(*job_store), "2");
  kill(pids_after("rank 0 pid ", first.output()).back(), SIGKILL);
  first.wait_for_output("count 3");
  const ProgramEnd of_first = end(first);
  const ProgramEnd of_second = second.wait();
  EXPECT_EQ(of_first.exit_code, 0) << of_first.errors;
  EXPECT_EQ(of_second.exit_code, 0) << of_second.errors;
  EXPECT_EQ(count_of("takes its place", of_first.errors), 1);
  EXPECT_EQ(count_of("takes its place", of_second.errors), 2);
  EXPECT_THAT(of_second.errors, HasSubstr("(2 of --max_restarts=3 within an hour)"));
}

TEST_F(NarrowcastRunRecoveryOnNodesTest, EndTogetherWhenOneOfThemMayNotReplaceMore) {
  const Words once = {"--recovery=in_place", "--max_restarts=1"};
  RunningProgram first(node(0, "exit 7", once));
  const std::string always = "test $RANK = 1 && exit 7; sleep 1000";
  const ProgramEnd of_second =
      run_to_end(launcher({"--nnodes=2", "--node_rank=1", "--master_addr=127.0.0.1", "--master_port=" + port}, always,
                          {"--rdzv_id=job7", "--recovery=in_place", "--max_restarts=1"}));
  const ProgramEnd of_first = first.wait();
  for (const ProgramEnd& ended : {of_first, of_second}) {
    EXPECT_EQ(ended.exit_code, 7);
    EXPECT_THAT(ended.errors, AllOf(ContainsRegex("rank 1 on node 1 .* failed first: exit code 7"),
                                    HasSubstr("; stopped 1 running rank\n"), Not(HasSubstr("restart 1"))));
  }
}

TEST_F(NarrowcastRunRecoveryOnNodesTest, AllHaveTheSameRecovery) {
  RunningProgram first(node(0, "true"));
  const ProgramEnd of_second = run_to_end(node(1, "true", {"--recovery=restart"}));
  for (const ProgramEnd& ended : {first.wait(), of_second}) {
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_THAT(ended.errors, ContainsRegex("launchers disagree: --recovery is in_place on node 0, .*, but restart on "
                                            "node 1, "));
  }
}

}  // namespace
}  // namespace narrowcast::testing
