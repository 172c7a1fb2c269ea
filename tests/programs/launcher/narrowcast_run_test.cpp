// narrowcast-run with real processes: the workers' environment, and invalid uses.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/programs/launcher/run_commands.h"
#include "tests/support/loopback_socket.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

class NarrowcastRunTest : public NarrowcastRunFixture {};

TEST_F(NarrowcastRunTest, GivesWorkersTheirEnvironment) {
  const ProgramEnd end = run_to_end({kRun, "--nproc-per-node", "2", "--standalone", "env"}, {{"OMP_NUM_THREADS", ""}});
  EXPECT_EQ(end.exit_code, 0);
  const Words lines = lines_with("[1]: ", end.output);
  for (const char* const line :
       {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1",
        "ROLE_NAME=default", "ROLE_RANK=1", "ROLE_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "OMP_NUM_THREADS=1",
        "TORCHELASTIC_MAX_RESTARTS=0", "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_USE_AGENT_STORE=True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"}) {
    EXPECT_THAT(lines, Contains(line));
  }
  EXPECT_THAT(lines, Contains(ContainsRegex("^MASTER_PORT=[1-9][0-9]*$")));
  EXPECT_THAT(lines, Contains(ContainsRegex("^TORCHELASTIC_RUN_ID=.")));
  EXPECT_THAT(lines, Contains(ContainsRegex("^TORCHELASTIC_ERROR_FILE=/.*/attempt_0/1/error.json$")));
  EXPECT_THAT(end.errors, HasSubstr("OMP_NUM_THREADS is not set"));
}

TEST_F(NarrowcastRunTest, PassesArgumentsOnUntouched) {
  const ProgramEnd end = run_to_end({kRun, "printf", "%s|", "--nproc_per_node=3", "--", "a b", ""});
  EXPECT_EQ(end.output, "[0]: --nproc_per_node=3|--|a b||\n");
}

TEST_F(NarrowcastRunTest, BindsWorkersToProcessorsAsAsked) {
  const Words flags = {"--numa_binding=core-complex"};
  const ProgramEnd end = run(2, "grep Cpus_allowed_list /proc/self/status", flags);
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_EQ(count_of("Cpus_allowed_list", end.output), 2);
  const ProgramEnd crowd = run(4096, "echo", {"--numa_binding=exclusive"});
  EXPECT_EQ(crowd.exit_code, 2);
  EXPECT_THAT(crowd.errors, HasSubstr("--numa_binding=exclusive: local rank 0: NUMA node "));
}

TEST_F(NarrowcastRunTest, HidesAllGpusButOneIfAsked) {
  const ProgramEnd end = run_to_end(
      command(2, "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE sees $CUDA_VISIBLE_DEVICES", {"--virtual_local_rank"}),
      {{"CUDA_VISIBLE_DEVICES", "3,5"}});
  EXPECT_EQ(lines_with("[0]: ", end.output), Words{"0 of 2 sees 3"});
  EXPECT_EQ(lines_with("[1]: ", end.output), Words{"0 of 2 sees 5"});
  expect_refused(run_to_end(command(2, "echo", {"--virtual-local-rank"}), {{"CUDA_VISIBLE_DEVICES", "3"}}),
                 "--virtual_local_rank: local rank 1 has no GPU in CUDA_VISIBLE_DEVICES=3");
}

TEST_F(NarrowcastRunTest, RefusesAPortInUseBeforeAnyWorkerStarts) {
  const network::ListeningSocket other = loopback_socket();
  const std::string port = std::to_string(other.port());
  expect_refused(run(2, "echo started", {"--master_port=" + port}),
                 "--master_port=" + port + ": cannot be used: Address already in use");
}

// tests/trainer/launcher/flags/launch_flags_test.cpp has the other wrong uses.
TEST_F(NarrowcastRunTest, RefusesWrongUse) {
  expect_refused(run(0, "echo"), "--nproc_per_node=0: must be a number from 1 to 4096, auto, cpu or gpu");
  expect_refused(run(1, "echo", {"--master_addr=192.0.2.1"}),
                 "--master_addr=192.0.2.1: not an address of this machine, where the job's store is served");
  expect_refused(run(1, "echo", {"--max_restarts=-1"}), "--max_restarts=-1: must be 0 or more");
  expect_refused(run(2, "echo", {"--tee=2:1"}), "--tee names local rank 2, but --nproc_per_node is 2");
  expect_refused(run(1, "echo", {"--signals_to_handle=SIGNAL"}),
                 "--signals_to_handle=SIGNAL: 'SIGNAL' is not a signal; example: SIGTERM,SIGINT");
}

TEST_F(NarrowcastRunTest, StartsAProgramAsItIs) {
  EXPECT_EQ(run(1, "echo started", {"--no-python"}).output, "[0]: started\n");
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

TEST_F(NarrowcastRunTest, NeedsAFolderForTemporaryFiles) {
  expect_refused(run_to_end(command(1, "echo started"), {{"TMPDIR", "/no/such"}}), "TMPDIR=/no/such: is not a folder");
}

// narrowcast-run with 8 workers after the shell command `setup`.
ProgramEnd run_eight_after(const std::string& setup, const std::string& script) {
  return run_to_end({"sh", "-c", setup + "; exec " + kRun + " --nproc_per_node=8 sh -c '" + script + "'"});
}

TEST_F(NarrowcastRunTest, UsesAsManyOpenFilesAsItMay) {
  const ProgramEnd end = run_eight_after("ulimit -Sn 16", "ulimit -Sn");
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_EQ(count_of("]: 16\n", end.output), 8);  // the workers have the launcher's limit
}

TEST_F(NarrowcastRunTest, RefusesToBeginWithTooFewOpenFiles) {
  expect_refused(run_eight_after("ulimit -n 63", "echo started"),
                 "RLIMIT_NOFILE: at most 63 files may be open, but this launcher needs about 64, with "
                 "--nproc_per_node=8; raise the limit (ulimit -Hn)");
  EXPECT_EQ(run_eight_after("ulimit -n 64", "exit 0").exit_code, 0);
}

TEST_F(NarrowcastRunTest, LeavesSignalsOfItsWorkersAsTheyWere) {
  // Bit 24 of SigIgn is SIGXFSZ, which the launcher itself ignores. The last seven digits are the first 28 signals:
  // signals beyond 31 belong to the C library.
  const std::string ignored = "grep SigIgn: /proc/self/status | tail -c 8";
  EXPECT_EQ(lines_with("[0]: ", run(1, ignored).output), lines_with("", run_to_end({"sh", "-c", ignored}).output));
}

// In a separate network whose loopback is down. Only root can make one.
TEST_F(NarrowcastRunTest, SaysThatItCannotReachItsOwnStore) {
  if (run_to_end({"unshare", "--net", "true"}).exit_code != 0) {
    GTEST_SKIP() << "network namespaces cannot be created here";
  }
  const ProgramEnd end = run_to_end({"unshare", "--net", kRun, "echo", "started"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, MatchesRegex("narrowcast-run: the job's store would be served at 127.0.0.1:[0-9]+, but this "
                                       "machine cannot reach itself there: Network is unreachable\n"));
}

TEST_F(NarrowcastRunTest, LeavesNoTemporaryFiles) {
  const ProgramEnd end = run_to_end(command(2, "echo $TORCHELASTIC_ERROR_FILE"), {{"TMPDIR", folder.path().string()}});
  EXPECT_THAT(end.output, HasSubstr(folder.path().string()));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST_F(NarrowcastRunTest, ServesTheStoreOnLoopbackAlone) {
  // The local addresses, in the kernel's hexadecimal, of sockets that listen (state 0A) on the store's port.
  const ProgramEnd end = run(1, R"(cat /proc/net/tcp /proc/net/tcp6 |
      awk -v end=":$(printf %04X $MASTER_PORT)$" '$4 == "0A" && $2 ~ end { print "listens " $2 }')");
  EXPECT_THAT(end.output, MatchesRegex("\\[0\\]: listens 0100007F:[0-9A-F]{4}\n"));
}

// Processor seconds of this process's terminated children.
double seconds_of_children() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_F(NarrowcastRunTest, StartsAndEndsEightRanksWithinASecond) {
  // The test uses processor time: elapsed time also depends on the rest of the machine.
  const double before = seconds_of_children();
  EXPECT_EQ(run_to_end({kRun, "--nproc_per_node=8", "true"}).exit_code, 0);
  EXPECT_LT(seconds_of_children() - before, 1.0);
}

TEST_F(NarrowcastRunTest, NamesJobAndRole) {
  const ProgramEnd end = run(1, "echo $TORCHELASTIC_RUN_ID $ROLE_NAME", {"--rdzv-id=job7", "--role", "reader"});
  EXPECT_EQ(end.output, "[0]: job7 reader\n");
}

// Prints the interfaces that a worker sees.
constexpr const char* kInterfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '";

TEST_F(NarrowcastRunTest, GivesAJobANetworkOfItsOwnWhereItIsAsked) {
  const ProgramEnd end = run(1, kInterfaces, {"--isolate=on"});
  if (end.exit_code == 2) GTEST_SKIP() << end.errors;
  EXPECT_EQ(end.output, "[0]: lo\n");
  EXPECT_THAT(end.errors, HasSubstr("this job runs in a private network"));
  EXPECT_EQ(run(2, "true", {"--isolate=on"}).exit_code, 0);
  const std::string outside = run_to_end({"sh", "-c", kInterfaces}).output;
  const std::string prefix = "[0]: ";
  EXPECT_EQ(lines_with(prefix, run(1, kInterfaces, {"--isolate=off"}).output).size(), lines_with("", outside).size());
  EXPECT_EQ(lines_with(prefix, run(1, kInterfaces).output).size(), lines_with("", outside).size())
      << "a program of somebody else's may need the network";
}

TEST_F(NarrowcastRunTest, IsolatesTheTrainerByItself) {
  const auto network_of = [&](const Words& flags, const Words& train_flags) {
    Words words{kRun};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {kNarrowcastTrain, "--dry_run"});
    words.insert(words.end(), train_flags.begin(), train_flags.end());
    const ProgramEnd end = run_to_end(words);
    EXPECT_EQ(end.exit_code, 0) << end.errors;
    const Words found = lines_with("[0]: network ", end.output);
    return found.empty() ? "" : found[0].substr(found[0].find_first_not_of(' '));
  };
  if (run(1, "true", {"--isolate=on"}).exit_code == 2) GTEST_SKIP() << "no private network here";
  EXPECT_EQ(network_of({}, {}), "loopback alone");
  EXPECT_EQ(network_of({"--standalone"}, {}), "loopback alone");
  EXPECT_EQ(network_of({"--isolate=off"}, {}), "shared");
  EXPECT_EQ(network_of({}, {"--interface=lo"}), "shared");
}

TEST_F(NarrowcastRunTest, RefusesANetworkOfItsOwnThatCannotBe) {
  expect_refused(run(1, "true", {"--isolate=on", "--nnodes=2", "--master_addr=127.0.0.1"}),
                 "--isolate=on is for one node, but --nnodes=2");
  expect_refused(run(1, "true", {"--isolate=on", "--master_addr=192.0.2.1"}),
                 "--isolate=on leaves only the address 127.0.0.1, but --master_addr is 192.0.2.1");
}

}  // namespace
}  // namespace narrowcast::testing
