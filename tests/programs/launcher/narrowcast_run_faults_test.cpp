// narrowcast-run with real processes: failures, signals, and nothing left behind.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/programs/launcher/run_commands.h"
#include "tests/support/is_running.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class NarrowcastRunFaultsTest : public NarrowcastRunFixture {};

TEST_F(NarrowcastRunFaultsTest, EndsAllRanksAtTheFirstFailure) {
  const ProgramEnd end = run(3, "if [ $RANK = 1 ]; then echo out of luck >&2; exit 7; fi; sleep 1000");
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_THAT(end.errors,
              AllOf(ContainsRegex("rank 1 \\(pid [0-9]+\\) failed first: exit code 7, [0-9.]+ s after"),
                    HasSubstr("; stopped 2 running ranks\n"), HasSubstr("narrowcast-run:     out of luck\n")));
}

TEST_F(NarrowcastRunFaultsTest, ShowsTheErrorAWorkerWrote) {
  const ProgramEnd end = run(2, R"(test $RANK = 0 && sleep 1000
      echo '{"message": {"message": "the disk is full"}}' > $TORCHELASTIC_ERROR_FILE; exit 1)");
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.errors, HasSubstr("narrowcast-run: its error: the disk is full\n"));
}

TEST_F(NarrowcastRunFaultsTest, DoesNotBlameTheSurvivors) {
  // Rank 0 ends first, with the code of a rank that lost its peer (3).
  const std::string fifo = (folder / "fifo");
  const ProgramEnd end = run(3, "mkfifo " + fifo + " 2>&-; case $RANK in 0) echo > " + fifo +
                                    "; exit 3;; 1) read x < " + fifo + "; exit 9;; 2) sleep 1000;; esac");
  EXPECT_EQ(end.exit_code, 9);
  EXPECT_THAT(end.errors, HasSubstr("rank 1 (pid"));
}

TEST_F(NarrowcastRunFaultsTest, KillsAWorkerThatWillNotStop) {
  const ProgramEnd end = run(2,
                             R"(if [ $RANK = 1 ]; then while ! [ -e )" + (folder / "deaf") +
                                 R"( ]; do :; done; exit 7; fi
      trap '' TERM; touch )" + (folder / "deaf") +
                                 "; sleep 1000; sleep 1000",
                             {"--shutdown_timeout=0.2"});
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_THAT(end.errors, HasSubstr("; stopped 1 running rank, with SIGKILL"));
}

class WorkerSignalTest : public NarrowcastRunFaultsTest, public ::testing::WithParamInterface<int> {};

TEST_P(WorkerSignalTest, ThatEndsAWorkerIsReported) {
  const std::string number = std::to_string(GetParam());
  const ProgramEnd end = run(2, "test $RANK = 0 && sleep 1000; kill -" + number + " $$");
  EXPECT_EQ(end.exit_code, 128 + GetParam());
  EXPECT_THAT(end.errors,
              AllOf(HasSubstr("rank 1 (pid"), HasSubstr(std::string("signal SIG") + sigabbrev_np(GetParam()) + " (")));
}

INSTANTIATE_TEST_SUITE_P(Signals, WorkerSignalTest, ::testing::Values(SIGKILL, SIGSEGV, SIGTERM, SIGABRT));

class LauncherSignalTest : public NarrowcastRunFaultsTest, public ::testing::WithParamInterface<int> {};

TEST_P(LauncherSignalTest, IsPassedOnAndLeavesNothingBehind) {
  const std::string name = sigabbrev_np(GetParam());
  RunningProgram launcher(command(2, "trap 'echo got " + name + "; exit 0' " + name +
                                         "; sleep 1000 & echo grandchild $!; echo worker $$; echo ready; wait"));
  launcher.wait_for_output("ready", 2);
  launcher.send(GetParam());
  const ProgramEnd end = launcher.wait();
  EXPECT_EQ(end.exit_code, 128 + GetParam());
  EXPECT_EQ(count_of("got " + name, end.output), 2);
  EXPECT_THAT(end.errors, HasSubstr("narrowcast-run: stopped by SIG" + name + "; stopped 2 running ranks"));
  for (const char* const label : {"grandchild ", "worker "}) {
    const std::vector<pid_t> pids = pids_after(label, end.output);
    EXPECT_EQ(pids.size(), 2U);
    for (const pid_t pid : pids) {
      EXPECT_FALSE(is_running(pid)) << label << pid;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, LauncherSignalTest, ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT));

TEST_F(NarrowcastRunFaultsTest, GoesOnAfterAHangUpUnderNohup) {
  RunningProgram launcher({"nohup", kRun, "sh", "-c", "echo ready; read line < " + (folder / "fifo")});
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  launcher.wait_for_output("ready");
  launcher.send(SIGHUP);
  std::ofstream(folder / "fifo") << "go on\n";
  EXPECT_EQ(launcher.wait().exit_code, 0);
}

TEST_F(NarrowcastRunFaultsTest, EndsWhatFailedWorkersStarted) {
  // One grandchild in the worker's process group, one in a separate session.
  const ProgramEnd end = run(1, "sleep 1000 & echo grandchild $!; setsid sleep 1000 & echo grandchild $!; exit 7");
  EXPECT_EQ(end.exit_code, 7);
  const std::vector<pid_t> pids = pids_after("grandchild ", end.output);
  ASSERT_EQ(pids.size(), 2U);
  EXPECT_FALSE(is_running(pids[0]));
  EXPECT_FALSE(is_running(pids[1]));
}

TEST_F(NarrowcastRunFaultsTest, EndsWhatSuccessfulWorkersLeaveRunning) {
  const ProgramEnd end = run(1, "sleep 1000 & echo grandchild $!");
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_FALSE(is_running(pids_after("grandchild ", end.output).at(0)));
}

TEST_F(NarrowcastRunFaultsTest, TakesItsWorkersAlongWhenItIsKilled) {
  RunningProgram launcher(command(2, "sleep 1000 & echo pid $!; echo pid $$; echo ready; wait", {"--noprefix"}));
  launcher.wait_for_output("ready", 2);
  launcher.send(SIGKILL);
  // Its streams end once all their holders have ended: workers, grandchildren and the guard.
  const ProgramEnd end = launcher.wait();
  EXPECT_EQ(end.signal, SIGKILL);
  const std::vector<pid_t> pids = pids_after("pid ", end.output);
  ASSERT_EQ(pids.size(), 4U);
  for (const pid_t pid : pids) {
    wait_until_gone(pid);
  }
}

TEST_F(NarrowcastRunFaultsTest, TheNextLauncherRemovesWhatAKilledOneLeft) {
  const std::map<std::string, std::string> environment = {{"TMPDIR", folder.path().string()}};
  RunningProgram killed(command(1, "echo ready; sleep 1000"), environment);
  killed.wait_for_output("ready");
  RunningProgram running(command(1, "echo ready; sleep 1000"), environment);
  running.wait_for_output("ready");
  killed.send(SIGKILL);
  killed.wait();
  EXPECT_EQ(folder.entries(), 2);
  EXPECT_EQ(run_to_end(command(1, "true"), environment).exit_code, 0);
  EXPECT_EQ(folder.entries(), 1);  // the folder of the running launcher
  running.send(SIGTERM);
  running.wait();
  EXPECT_EQ(folder.entries(), 0);
}

}  // namespace
}  // namespace narrowcast::testing
