// narrowcast-run with real processes. Workers are lines of shell.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/programs/running_program.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using Words = std::vector<std::string>;

const std::string kRun = NARROWCAST_RUN;

// narrowcast-run with `flags` and `ranks` workers that run `script`.
Words command(int ranks, const std::string& script, const Words& flags = {}) {
  Words words = {kRun, "--nproc_per_node=" + std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {"sh", "-c", script});
  return words;
}

ProgramEnd run(int ranks, const std::string& script, const Words& flags = {}) {
  return run_to_end(command(ranks, script, flags));
}

// The lines of `text` that begin with `prefix`, without it.
Words lines_with(const std::string& prefix, const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(prefix)) {
      lines.push_back(line.substr(prefix.size()));
    }
  }
  return lines;
}

// The ids that workers printed in lines with `label`.
std::vector<pid_t> pids_after(const std::string& label, const std::string& text) {
  std::vector<pid_t> pids;
  for (size_t at = text.find(label); at != std::string::npos; at = text.find(label, at + 1)) {
    pids.push_back(static_cast<pid_t>(std::stol(text.substr(at + label.size()))));
  }
  return pids;
}

class NarrowcastRunTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder;
};

TEST_F(NarrowcastRunTest, GivesWorkersTheirEnvironment) {
  const ProgramEnd end = run_to_end({kRun, "--nproc-per-node", "2", "--standalone", "env"}, {{"OMP_NUM_THREADS", ""}});
  EXPECT_EQ(end.exit_code, 0);
  const Words lines = lines_with("[1]: ", end.output);
  for (const char* const line :
       {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1",
        "ROLE_NAME=default", "ROLE_RANK=1", "ROLE_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "OMP_NUM_THREADS=1",
        "TORCHELASTIC_MAX_RESTARTS=0", "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_USE_AGENT_STORE=False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"}) {
    EXPECT_THAT(lines, ::testing::Contains(line));
  }
  EXPECT_THAT(lines, ::testing::Contains(ContainsRegex("^MASTER_PORT=[1-9][0-9]*$")));
  EXPECT_THAT(lines, ::testing::Contains(ContainsRegex("^TORCHELASTIC_RUN_ID=.")));
  EXPECT_THAT(lines, ::testing::Contains(ContainsRegex("^TORCHELASTIC_ERROR_FILE=/.*/attempt_0/1/error.json$")));
  EXPECT_THAT(end.errors, HasSubstr("OMP_NUM_THREADS is not set"));
}

TEST_F(NarrowcastRunTest, PassesArgumentsOnUntouched) {
  const ProgramEnd end = run_to_end({kRun, "printf", "%s|", "--nproc_per_node=3", "--", "a b", ""});
  EXPECT_EQ(end.output, "[0]: --nproc_per_node=3|--|a b||\n");
}

TEST_F(NarrowcastRunTest, PutsTheRankBeforeEachLine) {
  const ProgramEnd end = run(2, "echo out $RANK; echo err $RANK >&2; printf 'no newline'");
  EXPECT_EQ(lines_with("[0]: ", end.output), (Words{"out 0", "no newline"}));
  EXPECT_EQ(lines_with("[1]: ", end.output), (Words{"out 1", "no newline"}));
  EXPECT_EQ(lines_with("[1]: ", end.errors), Words{"err 1"});
}

TEST_F(NarrowcastRunTest, NeverMixesLines) {
  // Each rank writes its lines in two pieces, hundreds of times, against the others.
  const ProgramEnd end =
      run(4,
          "i=0; while [ $i -lt 300 ]; do printf 'first half of %s, ' $i; printf 'second half of %s\\n' $i; "
          "i=$((i + 1)); done");
  Words expected;
  for (int i = 0; i < 300; ++i) {
    const std::string number = std::to_string(i);
    expected.push_back("first half of " + number + ", second half of " + number);
  }
  for (const char* const prefix : {"[0]: ", "[1]: ", "[2]: ", "[3]: "}) {
    EXPECT_EQ(lines_with(prefix, end.output), expected);
  }
}

TEST_F(NarrowcastRunTest, ShowsAllOfALargeOutput) {
  const ProgramEnd end = run(2, "yes 0123456789abcdef | head -n 100000");
  EXPECT_EQ(count_of("]: 0123456789abcdef\n", end.output), 200000);
}

TEST_F(NarrowcastRunTest, LeavesOutputRawIfAsked) {
  const ProgramEnd end = run(1, "echo out; echo err >&2", {"--noprefix"});
  EXPECT_EQ(end.output, "out\n");
  EXPECT_EQ(end.errors, "err\n");
}

TEST_F(NarrowcastRunTest, SendsOutputToFiles) {
  const ProgramEnd end = run(2, "echo out $RANK; echo err $RANK >&2", {"--log_dir=" + folder / "logs"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.output, "");
  const std::filesystem::path run_folder = std::filesystem::directory_iterator(folder / "logs")->path();
  EXPECT_THAT(end.errors, HasSubstr("output goes to " + run_folder.string() + "/attempt_0/RANK/stdout.log"));
  std::stringstream out;
  std::stringstream err;
  out << std::ifstream(run_folder / "attempt_0/1/stdout.log").rdbuf();
  err << std::ifstream(run_folder / "attempt_0/1/stderr.log").rdbuf();
  EXPECT_EQ(out.str(), "out 1\n");
  EXPECT_EQ(err.str(), "err 1\n");
}

TEST_F(NarrowcastRunTest, GivesWorkersNoInput) {
  EXPECT_EQ(run(1, "read line || echo end of input").output, "[0]: end of input\n");
}

TEST_F(NarrowcastRunTest, RunsWithoutStandardStreams) {
  const std::string file = folder / "written";
  const ProgramEnd end =
      run_to_end({"sh", "-c", kRun + " sh -c 'echo lost; echo kept > " + file + "' <&- >&- 2>&-; echo exit code $?"});
  EXPECT_EQ(end.output, "exit code 0\n");
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST_F(NarrowcastRunTest, EndsAllRanksAtTheFirstFailure) {
  const ProgramEnd end = run(3, "if [ $RANK = 1 ]; then echo out of luck >&2; exit 7; fi; sleep 1000");
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_THAT(end.errors,
              AllOf(ContainsRegex("rank 1 \\(pid [0-9]+\\) failed first: exit code 7, [0-9.]+ s after"),
                    HasSubstr("; stopped 2 ranks that ran\n"), HasSubstr("narrowcast-run:     out of luck\n")));
}

TEST_F(NarrowcastRunTest, ShowsTheErrorAWorkerWrote) {
  const ProgramEnd end = run(2, R"(test $RANK = 0 && sleep 1000
      echo '{"message": {"message": "the disk is full"}}' > $TORCHELASTIC_ERROR_FILE; exit 1)");
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.errors, HasSubstr("narrowcast-run: its error: the disk is full\n"));
}

TEST_F(NarrowcastRunTest, ShowsTheEndOfTheLogOfAFailedRank) {
  const ProgramEnd end = run(1, "echo why >&2; exit 4", {"--log_dir", folder.path().string()});
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_THAT(end.errors, AllOf(HasSubstr("/attempt_0/0/stderr.log"), HasSubstr("narrowcast-run:     why\n")));
}

TEST_F(NarrowcastRunTest, DoesNotBlameTheSurvivors) {
  // Rank 0 ends first, but as one that lost its peer (exit code 3).
  const std::string fifo = (folder / "fifo");
  const ProgramEnd end = run(3, "mkfifo " + fifo + " 2>&-; case $RANK in 0) echo > " + fifo +
                                    "; exit 3;; 1) read x < " + fifo + "; exit 9;; 2) sleep 1000;; esac");
  EXPECT_EQ(end.exit_code, 9);
  EXPECT_THAT(end.errors, HasSubstr("rank 1 (pid"));
}

TEST_F(NarrowcastRunTest, KillsAWorkerThatWillNotStop) {
  const ProgramEnd end = run(2,
                             R"(if [ $RANK = 1 ]; then while ! [ -e )" + (folder / "deaf") +
                                 R"( ]; do :; done; exit 7; fi
      trap '' TERM; touch )" + (folder / "deaf") +
                                 "; sleep 1000; sleep 1000",
                             {"--shutdown_timeout=0.2"});
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_THAT(end.errors, HasSubstr("; stopped 1 rank that ran, with SIGKILL"));
}

class WorkerSignalTest : public NarrowcastRunTest, public ::testing::WithParamInterface<int> {};

TEST_P(WorkerSignalTest, ThatEndsAWorkerIsReported) {
  const std::string number = std::to_string(GetParam());
  const ProgramEnd end = run(2, "test $RANK = 0 && sleep 1000; kill -" + number + " $$");
  EXPECT_EQ(end.exit_code, 128 + GetParam());
  EXPECT_THAT(end.errors,
              AllOf(HasSubstr("rank 1 (pid"), HasSubstr(std::string("signal SIG") + sigabbrev_np(GetParam()) + " (")));
}

INSTANTIATE_TEST_SUITE_P(Signals, WorkerSignalTest, ::testing::Values(SIGKILL, SIGSEGV, SIGTERM, SIGABRT));

class LauncherSignalTest : public NarrowcastRunTest, public ::testing::WithParamInterface<int> {};

TEST_P(LauncherSignalTest, IsPassedOnAndLeavesNothingBehind) {
  const std::string name = sigabbrev_np(GetParam());
  RunningProgram launcher(command(2, "trap 'echo got " + name + "; exit 0' " + name +
                                         "; sleep 1000 & echo grandchild $!; echo worker $$; echo ready; wait"));
  launcher.wait_for_output("ready", 2);
  launcher.send(GetParam());
  const ProgramEnd end = launcher.wait();
  EXPECT_EQ(end.exit_code, 128 + GetParam());
  EXPECT_EQ(count_of("got " + name, end.output), 2);
  EXPECT_THAT(end.errors, HasSubstr("narrowcast-run: stopped by SIG" + name + "; stopped 2 ranks that ran"));
  for (const char* const label : {"grandchild ", "worker "}) {
    const std::vector<pid_t> pids = pids_after(label, end.output);
    EXPECT_EQ(pids.size(), 2U);
    for (const pid_t pid : pids) {
      EXPECT_EQ(kill(pid, 0), -1) << label << pid << " still runs";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, LauncherSignalTest, ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT));

TEST_F(NarrowcastRunTest, GoesOnAfterAHangUpUnderNohup) {
  RunningProgram launcher({"nohup", kRun, "sh", "-c", "echo ready; read line < " + (folder / "fifo")});
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  launcher.wait_for_output("ready");
  launcher.send(SIGHUP);
  std::ofstream(folder / "fifo") << "go on\n";
  EXPECT_EQ(launcher.wait().exit_code, 0);
}

TEST_F(NarrowcastRunTest, EndsWhatFailedWorkersStarted) {
  // One grandchild in the worker's process group, one in a session of its own.
  const ProgramEnd end = run(1, "sleep 1000 & echo grandchild $!; setsid sleep 1000 & echo grandchild $!; exit 7");
  EXPECT_EQ(end.exit_code, 7);
  const std::vector<pid_t> pids = pids_after("grandchild ", end.output);
  ASSERT_EQ(pids.size(), 2U);
  EXPECT_EQ(kill(pids[0], 0), -1);
  EXPECT_EQ(kill(pids[1], 0), -1);
}

TEST_F(NarrowcastRunTest, EndsWhatSuccessfulWorkersLeaveRunning) {
  const ProgramEnd end = run(1, "sleep 1000 & echo grandchild $!");
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(kill(pids_after("grandchild ", end.output).at(0), 0), -1);
}

TEST_F(NarrowcastRunTest, TakesItsWorkersAlongWhenItIsKilled) {
  RunningProgram launcher(command(2, "sleep 1000 & echo pid $!; echo pid $$; echo ready; wait", {"--noprefix"}));
  launcher.wait_for_output("ready", 2);
  launcher.send(SIGKILL);
  // Its streams end when all who hold them have ended: workers, grandchildren and the guard.
  const ProgramEnd end = launcher.wait();
  EXPECT_EQ(end.signal, SIGKILL);
  const std::vector<pid_t> pids = pids_after("pid ", end.output);
  ASSERT_EQ(pids.size(), 4U);
  for (const pid_t pid : pids) {
    wait_until_gone(pid);
  }
}

TEST_F(NarrowcastRunTest, EndsItsWorkersWhenNobodyReadsTheirOutput) {
  RunningProgram launcher(command(1, "echo pid $$; while echo more; do :; done; sleep 1000"));
  launcher.wait_for_output("more");
  launcher.close_output();
  const ProgramEnd end = launcher.wait();
  EXPECT_EQ(end.exit_code, 128 + SIGPIPE);
  EXPECT_EQ(kill(pids_after("pid ", end.output).at(0), 0), -1);
}

// A line on standard error and exit code 2, and nothing started.
void expect_refused(const ProgramEnd& end, const std::string& message) {
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.output, "");
  EXPECT_EQ(end.errors, "narrowcast-run: " + message + "\n");
}

TEST_F(NarrowcastRunTest, RefusesAPortInUseBeforeAnyWorkerStarts) {
  const int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(other, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(other, 1), 0);
  ASSERT_EQ(getsockname(other, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  expect_refused(run(2, "echo started", {"--master_port=" + port}),
                 "--master_port=" + port + ": cannot be used: Address already in use");
  close(other);
}

TEST_F(NarrowcastRunTest, RefusesWrongUse) {
  expect_refused(run_to_end({kRun}), "no program to start: narrowcast-run [flags] PROGRAM [arguments]");
  expect_refused(run(0, "echo"), "--nproc_per_node=0: must be a number from 1 to 4096, auto, cpu or gpu");
  expect_refused(run(-1, "echo"), "--nproc_per_node=-1: must be a number from 1 to 4096, auto, cpu or gpu");
  expect_refused(run(1, "echo", {"--nnode=2"}), "unknown flag --nnode (--help lists the flags)");
  expect_refused(run(1, "echo", {"--master_addr=192.0.2.1"}),
                 "--master_addr=192.0.2.1: not an address of this machine, where rank 0 runs");
  expect_refused(run(1, "echo", {"--standalone", "--master_port=1234"}),
                 "--standalone chooses address and port: give it, or --master_addr and --master_port");
  expect_refused(run(1, "echo", {"--log_dir=x", "--prefix"}),
                 "--prefix and --log_dir exclude each other: output in files is never prefixed");
  expect_refused(run(1, "echo", {"--shutdown_timeout=-1"}), "--shutdown_timeout=-1: must be from 0 to 86400 s");
}

TEST_F(NarrowcastRunTest, RefusesProgramsThatCannotBeExecuted) {
  expect_refused(run_to_end({kRun, "./no/such"}), "./no/such: no such program");
  folder.write("text", "no program");
  expect_refused(run_to_end({kRun, folder / "text"}), folder / "text" + ": not an executable file");
  std::filesystem::permissions(folder / "text", std::filesystem::perms::owner_all);
  expect_refused(run_to_end({kRun, folder / "text"}), folder / "text" + ": cannot be executed: Exec format error");
}

TEST_F(NarrowcastRunTest, FindsOurProgramsBesideItself) {
  const ProgramEnd end = run_to_end({kRun, "narrowcast-run", "--version"}, {{"PATH", "/no/such"}});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.output, MatchesRegex("\\[0\\]: narrowcast-run [0-9.]+\n"));
}

TEST_F(NarrowcastRunTest, AnswersHelpAndVersion) {
  const ProgramEnd help = run_to_end({kRun, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("--nproc_per_node"), HasSubstr("Examples:"), HasSubstr("Exit codes:")));
  EXPECT_THAT(help.errors, IsEmpty());
  EXPECT_THAT(run_to_end({kRun, "--version"}).output, MatchesRegex("narrowcast-run [0-9.]+\n"));
}

TEST_F(NarrowcastRunTest, LeavesNoTemporaryFiles) {
  const ProgramEnd end = run_to_end(command(2, "echo $TORCHELASTIC_ERROR_FILE"), {{"TMPDIR", folder.path().string()}});
  EXPECT_THAT(end.output, HasSubstr(folder.path().string()));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace narrowcast::testing
