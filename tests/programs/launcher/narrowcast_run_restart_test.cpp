// narrowcast-run with real processes: workers that are restarted.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>

#include "tests/programs/launcher/run_commands.h"
#include "tests/support/is_running.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class NarrowcastRunRestartTest : public NarrowcastRunFixture {};

TEST_F(NarrowcastRunRestartTest, StartsAllWorkersAgainWhenOneFails) {
  // In the first attempt, rank 0 would never end by itself.
  const ProgramEnd end = run(2,
                             R"(echo start $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS
      test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; test $RANK = 1 && exit 7; sleep 1000)",
                             {"--max-restarts", "3"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(lines_with("[0]: ", end.output), (Words{"start 0 of 3", "start 1 of 3"}));
  EXPECT_EQ(lines_with("[1]: ", end.output), (Words{"start 0 of 3", "start 1 of 3"}));
  EXPECT_THAT(end.errors, AllOf(HasSubstr("failed first: exit code 7"), HasSubstr("; stopped 1 running rank"),
                                HasSubstr("narrowcast-run: restart 1 (--max_restarts=3): 2 ranks\n")));
}

TEST_F(NarrowcastRunRestartTest, EndsWithTheLastFailure) {
  const ProgramEnd end = run(1, "echo try >&2; exit $((10 + TORCHELASTIC_RESTART_COUNT))", {"--max_restarts=2"});
  EXPECT_EQ(end.exit_code, 12);
  EXPECT_EQ(count_of("[0]: try", end.errors), 3);
  EXPECT_EQ(count_of("restart ", end.errors), 2);
}

// Our programs' failures are recognised by their error file, others after the second time.
TEST_F(NarrowcastRunRestartTest, DoesNotRestartWhatWouldFailAlike) {
  const ProgramEnd ours =
      run_to_end({kRun, "--nproc_per_node=2", "--max_restarts=8", kNarrowcastTrain, "--no_such_flag"});
  EXPECT_EQ(ours.exit_code, 2);
  EXPECT_THAT(ours.errors, AllOf(HasSubstr("--no_such_flag"), Not(HasSubstr("restart 1")),
                                 HasSubstr("narrowcast-run: not restarted, because it would fail in the same way\n")));
  const ProgramEnd other = run(2, "echo unknown flag $$ >&2; exit 2", {"--max_restarts=8"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.errors, AllOf(HasSubstr("restart 1 "), Not(HasSubstr("restart 2 ")),
                                  HasSubstr("not restarted, because it would fail in the same way")));
}

TEST_F(NarrowcastRunRestartTest, EndsWithWhatTheRestartWasToMend) {
  const ProgramEnd end = run(1, "test $TORCHELASTIC_RESTART_COUNT = 0 && kill -KILL $$; exit 2", {"--max_restarts=8"});
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  EXPECT_THAT(end.errors, AllOf(HasSubstr("restart 2 "), Not(HasSubstr("restart 3 ")),
                                HasSubstr("the failure that caused this restart, and that ends the job:")));
}

TEST_F(NarrowcastRunRestartTest, DoesNotRestartAtASignal) {
  RunningProgram launcher(command(2, "echo ready; sleep 1000", {"--max_restarts=3"}));
  launcher.wait_for_output("ready", 2);
  launcher.send(SIGTERM);
  const ProgramEnd end = launcher.wait();
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_THAT(end.errors, Not(HasSubstr("restart")));
}

TEST_F(NarrowcastRunRestartTest, GivesEachAttemptAFolder) {
  run(1, "echo $TORCHELASTIC_RESTART_COUNT; exit 1", {"--max_restarts=1", "--log_dir", folder.path().string()});
  const std::filesystem::path logs = std::filesystem::directory_iterator(folder.path())->path();
  Words attempts;
  for (const auto& entry : std::filesystem::directory_iterator(logs)) {
    attempts.push_back(entry.path().filename());
    EXPECT_EQ(std::filesystem::file_size(entry.path() / "0/stdout.log"), 2U);
  }
  EXPECT_THAT(attempts, UnorderedElementsAre("attempt_0", "attempt_1"));
}

TEST_F(NarrowcastRunRestartTest, KeepsThePort) {
  const ProgramEnd end = run(1, "echo $MASTER_PORT; exit $((1 - TORCHELASTIC_RESTART_COUNT))", {"--max_restarts=1"});
  const Words ports = lines_with("[0]: ", end.output);
  ASSERT_EQ(ports.size(), 2U);
  EXPECT_EQ(ports[0], ports[1]);
}

TEST_F(NarrowcastRunRestartTest, TrainsAfterARankWasKilled) {
  // The first time, rank 0 kills rank 1 once it has made progress. The second time both ranks meet again, at the same
  // port and in the same store.
  const std::string train = std::string(kNarrowcastTrain) +
                            " --model=char_gpt --layers=1 --heads=2 --width=16 --context=16 --batch_size=12"
                            " --eval_batches=1 --sample_length=0 --log_every=1 --steps=";
  const std::string pid_file = folder / "pid";
  const ProgramEnd end = run(2,
                             "case $TORCHELASTIC_RESTART_COUNT$RANK in 01) echo $$ > " + pid_file + "; exec " + train +
                                 "1000000;; 00) " + train + "1000000 2>&1 | while read line; do kill -9 $(cat " +
                                 pid_file + "); done; exit 3;; esac; exec " + train + "2",
                             {"--max_restarts=1"});
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("rank 1 (pid"), HasSubstr("signal SIGKILL")));
  EXPECT_THAT(end.output, HasSubstr("identical on all ranks"));
}

TEST_F(NarrowcastRunRestartTest, LeavesNothingOfAnAttemptBehind) {
  const ProgramEnd end =
      run(1, "setsid sleep 1000 & echo left $!; exit $((1 - TORCHELASTIC_RESTART_COUNT))", {"--max_restarts=1"});
  EXPECT_EQ(end.exit_code, 0);
  const std::vector<pid_t> pids = pids_after("left ", end.output);
  ASSERT_EQ(pids.size(), 2U);
  for (const pid_t pid : pids) {
    EXPECT_FALSE(is_running(pid));
  }
}

TEST_F(NarrowcastRunRestartTest, PassesTheFailureOnToWhoeverStartedIt) {
  const std::string outer = folder / "outer.json";
  const ProgramEnd end =
      run_to_end(command(1, R"(echo '{"message": "the disk is full"}' > $TORCHELASTIC_ERROR_FILE; exit 1)"),
                 {{"TORCHELASTIC_ERROR_FILE", outer}});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(std::filesystem::exists(outer));
  EXPECT_THAT(run_to_end({"cat", outer}).output, HasSubstr("\"message\":\"the disk is full\""));
}

TEST_F(NarrowcastRunRestartTest, SucceedsThoughTheGuardWasKilled) {
  const ProgramEnd end = run(2,
                             R"sh(test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0
      test $RANK = 1 && sleep 1000
      for stat in /proc/[0-9]*/stat; do
        set -- $(cat $stat 2>&-)
        test "$2" = "(narrowcast-grd)" && test "$4" = $PPID && kill -9 $1 && exit 7
      done)sh",
                             {"--max_restarts=1"});
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, HasSubstr("failed first: exit code 7"));
}

}  // namespace
}  // namespace narrowcast::testing
