#include "trainer/launcher/posix/process_runner.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/error_message.h"
#include "tests/support/is_running.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"
#include "trainer/launcher/posix/numa_topology.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

// Reads the process id in `file`.
pid_t orphan_in(const std::string& file) {
  pid_t pid = 0;
  std::ifstream(file) >> pid;
  return pid;
}

class ProcessRunnerTest : public ::testing::Test {
 protected:
  WorkerCommand shell(int64_t rank, const std::string& script) const {
    WorkerCommand command;
    command.rank = rank;
    command.arguments = {"/bin/sh", "-c", script};
    command.environment = {{"PATH", "/usr/bin:/bin"}, {"OUT", folder / std::to_string(rank)}};
    command.error_file = folder / "run/error.json";
    return command;
  }

  const testing::TemporaryFolder folder;
  ProcessRunner runner{RunnerOptions{.prefix = false}};
};

TEST_F(ProcessRunnerTest, TellsHowWorkersEnd) {
  runner.start(shell(0, "exit 5"));
  const Event exited = runner.wait({});
  EXPECT_EQ(exited.kind, Event::Kind::kWorkerEnded);
  EXPECT_EQ(exited.rank, 0);
  EXPECT_EQ(exited.ending.exit_code, 5);
  runner.start(shell(1, "kill -SEGV $$"));
  const Event crashed = runner.wait({});
  EXPECT_EQ(crashed.rank, 1);
  EXPECT_EQ(crashed.ending.signal, SIGSEGV);
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
}

TEST_F(ProcessRunnerTest, BindsWorkersToProcessors) {
  const std::vector<int64_t> usable = usable_processors();
  WorkerCommand last = shell(0, "grep Cpus_allowed_list /proc/self/status >$OUT");
  last.processors = {usable.back()};
  runner.start(last);
  EXPECT_EQ(runner.wait({}).ending.code(), 0);
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
  EXPECT_EQ(files::read_file(folder / "0"), "Cpus_allowed_list:\t" + std::to_string(usable.back()) + "\n");
  WorkerCommand none = shell(1, "true");
  none.processors = {CPU_SETSIZE - 1};
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { runner.start(none); }),
            "/bin/sh: cannot be executed: Invalid argument");
}

TEST_F(ProcessRunnerTest, TimesOut) {
  runner.start(shell(0, "sleep 1000"));
  EXPECT_EQ(runner.wait(runner.now() + milliseconds(1)).kind, Event::Kind::kTimeout);
}

TEST_F(ProcessRunnerTest, TellsOfSignalsToThisProcess) {
  runner.start(shell(0, "sleep 1000"));
  kill(getpid(), SIGTERM);
  const Event event = runner.wait({});
  EXPECT_EQ(event.kind, Event::Kind::kSignal);
  EXPECT_EQ(event.signal, SIGTERM);
}

TEST_F(ProcessRunnerTest, SignalsReachAllWorkersAndWhatTheyStarted) {
  runner.start(shell(0, "sleep 1000 & sleep 1000"));
  runner.start(shell(1, "sleep 1000"));
  runner.send(SIGKILL);
  EXPECT_EQ(runner.wait({}).ending.signal, SIGKILL);
  EXPECT_EQ(runner.wait({}).ending.signal, SIGKILL);
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
}

TEST_F(ProcessRunnerTest, WaitsForOrphansOutsideTheGroupToo) {
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  runner.start(shell(0, "setsid sh -c 'read line < " + fifo + "; echo done > $OUT' &"));
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kWorkerEnded);
  EXPECT_EQ(runner.wait(runner.now()).kind, Event::Kind::kTimeout);  // the orphan still reads
  std::ofstream(fifo) << "go\n";
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
  EXPECT_TRUE(std::filesystem::exists(folder / "0"));
}

TEST_F(ProcessRunnerTest, ReachesAnOrphanOutsideTheGroup) {
  runner.start(shell(0, "setsid sleep 1000 &"));
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kWorkerEnded);
  runner.send(SIGTERM);
  // The orphan may still be in the group. The test is that it ends.
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
}

TEST_F(ProcessRunnerTest, ReapsOrphansWhileWorkersRun) {
  // The inner shell ends before the sleep that it starts, so this process adopts the sleep.
  const pid_t worker =
      runner.start(shell(0, "sh -c 'sleep 0.01 & echo $! > $OUT.part; mv $OUT.part $OUT'; sleep 1000"));
  const std::string written = folder / "0";
  const auto reaped = [&] { return std::filesystem::exists(written) && kill(orphan_in(written), 0) != 0; };
  const auto deadline = runner.now() + testing::kPatience;
  while (!reaped()) {
    ASSERT_LT(runner.now(), deadline);
    ASSERT_EQ(runner.wait(runner.now() + milliseconds(1)).kind, Event::Kind::kTimeout);
  }
  EXPECT_TRUE(testing::is_running(worker));
}

TEST_F(ProcessRunnerTest, RefusesAFolderOrFileItCannotMake) {
  WorkerCommand command = shell(0, "exit 0");
  command.error_file = "/dev/null/run/error.json";
  EXPECT_THROW(runner.start(command), c10::ValueError);
  command = shell(0, "exit 0");
  command.output = {.shown = false, .file = folder.path()};  // a folder is not a file
  EXPECT_THROW(runner.start(command), c10::ValueError);
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
}

TEST_F(ProcessRunnerTest, RunsOneGroupAfterAnother) {
  for (const int code : {5, 6}) {
    runner.start(shell(0, "exit " + std::to_string(code)));
    EXPECT_EQ(runner.wait({}).ending.exit_code, code);
    EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
    EXPECT_EQ(runner.wait(runner.now()).kind, Event::Kind::kTimeout);  // no more events
  }
}

// The contents of `file`.
std::string content(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST_F(ProcessRunnerTest, SendsStreamsToFilesAndNowhere) {
  WorkerCommand command = shell(0, "echo out; echo err >&2");
  command.output = {.shown = false, .file = folder / "out.log"};
  command.error = {.shown = false, .file = {}};
  runner.start(command);
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kWorkerEnded);
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
  EXPECT_EQ(content(folder / "out.log"), "out\n");
  EXPECT_EQ(runner.last_error_lines(0), std::vector<std::string>{"err"});  // not shown, yet read
}

TEST_F(ProcessRunnerTest, ForgetsTheLinesOfTheGroupBefore) {
  WorkerCommand command = shell(0, "echo first >&2");
  command.error = {.shown = false, .file = {}};
  for (const char* const script : {"echo first >&2", "echo second >&2"}) {
    command.arguments.back() = script;
    runner.start(command);
    EXPECT_EQ(runner.wait({}).kind, Event::Kind::kWorkerEnded);
    EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
  }
  EXPECT_EQ(runner.last_error_lines(0), std::vector<std::string>{"second"});
}

// Starts rank 0 beside rank 1, which lives on.
class ClearedRankTest : public ProcessRunnerTest {
 protected:
  pid_t start_beside_another(const std::string& script) {
    WorkerCommand command = shell(0, script);
    command.environment["TORCHELASTIC_ERROR_FILE"] = folder / "error.json";
    command.error = {.shown = false, .file = {}};
    const pid_t pid = runner.start(command);
    other = runner.start(shell(1, "sleep 1000"));
    EXPECT_EQ(runner.wait({}).rank, 0);
    return pid;
  }
  void clear() {
    const auto deadline = runner.now() + testing::kPatience;
    while (!runner.clear(0)) {
      ASSERT_LT(runner.now(), deadline);
      runner.wait(runner.now() + milliseconds(1));
    }
  }

  pid_t other = 0;
};

TEST_F(ClearedRankTest, LeavesNothingBehind) {
  // A process of its group, an orphan in another session, and a child of that orphan in yet another.
  start_beside_another(
      "sleep 1000 & echo $! > $OUT; "
      "setsid sh -c 'setsid sleep 1000 & echo $! >> $OUT; sleep 1000' & echo $! >> $OUT; "
      "while test $(wc -l < $OUT) -lt 3; do sleep 0.01; done; exit 7");
  clear();
  std::ifstream pids(folder / "0");
  for (int64_t count = 0; count < 3; ++count) {
    pid_t pid = 0;
    pids >> pid;
    EXPECT_GT(pid, 0);
    EXPECT_FALSE(testing::is_running(pid)) << count;
  }
  EXPECT_TRUE(testing::is_running(other));
}

TEST_F(ClearedRankTest, HasAnotherWorkerWithItsOwnOutput) {
  const pid_t first = start_beside_another("echo first >&2; exit 7");
  EXPECT_EQ(runner.last_error_lines(0), std::vector<std::string>{"first"});
  EXPECT_FALSE(runner.clear(1)) << "it runs";
  clear();
  EXPECT_NE(kill(first, 0), 0) << "it is reaped";
  WorkerCommand second = shell(0, "echo second >&2; exit 8");
  second.error = {.shown = false, .file = {}};
  runner.start(second);
  const Event event = runner.wait({});
  EXPECT_EQ(event.rank, 0);
  EXPECT_EQ(event.ending.exit_code, 8);
  EXPECT_EQ(runner.last_error_lines(0), std::vector<std::string>{"second"});
  runner.send_to(1, SIGKILL);
  EXPECT_EQ(runner.wait({}).ending.signal, SIGKILL);
  EXPECT_EQ(runner.wait({}).kind, Event::Kind::kAllGone);
}

TEST_F(ClearedRankTest, GetsNoSignals) {
  start_beside_another("exit 7");
  runner.send_to(0, SIGKILL);
  EXPECT_EQ(runner.wait(runner.now()).kind, Event::Kind::kTimeout);
  clear();
  runner.send(SIGKILL);
  EXPECT_EQ(runner.wait({}).rank, 1);
}

}  // namespace
}  // namespace narrowcast::launcher
