// narrowcast-run with real processes: the destinations of output.
#include <gmock/gmock.h>

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
using ::testing::HasSubstr;

// The content of `file`.
std::string content(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class NarrowcastRunOutputTest : public NarrowcastRunFixture {};

TEST_F(NarrowcastRunOutputTest, PutsTheRankBeforeEachLine) {
  const ProgramEnd end = run(2, "echo out $RANK; echo err $RANK >&2; printf 'no newline'");
  EXPECT_EQ(lines_with("[0]: ", end.output), (Words{"out 0", "no newline"}));
  EXPECT_EQ(lines_with("[1]: ", end.output), (Words{"out 1", "no newline"}));
  EXPECT_EQ(lines_with("[1]: ", end.errors), Words{"err 1"});
}

TEST_F(NarrowcastRunOutputTest, PutsATemplateBeforeEachLine) {
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  const Words flags = {"--log_line_prefix_template=${hostname} ${role_name}${rank}/$local_rank$$ ", "--role=x"};
  const ProgramEnd end = run(2, "echo out $RANK; echo err $RANK >&2", flags);
  EXPECT_EQ(lines_with(std::string(host) + " x1/1$ ", end.output), Words{"out 1"});
  EXPECT_EQ(lines_with(std::string(host) + " x0/0$ ", end.errors), Words{"err 0"});
  EXPECT_EQ(run(1, "echo out", {"--log_line_prefix_template="}).output, "out\n");
}

TEST_F(NarrowcastRunOutputTest, ReadsTorchrunsVariableForTheTemplate) {
  const std::map<std::string, std::string> variable = {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}> "}};
  EXPECT_EQ(run_to_end(command(1, "echo out"), variable).output, "<0> out\n");
  EXPECT_EQ(run_to_end(command(1, "echo out", {"--log_line_prefix_template=$rank "}), variable).output, "0 out\n");
  EXPECT_EQ(run_to_end(command(1, "echo out", {"--noprefix"}), variable).output, "out\n");
  const ProgramEnd end = run_to_end(command(1, "echo out"), {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${x}"}});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=${x}: '${x}' is not a variable"));
}

// The same files as torchrun's: the lines of all workers of an attempt, with their prefix.
TEST_F(NarrowcastRunOutputTest, CopiesLinesThatHoldATextToOneFile) {
  const ProgramEnd end =
      run(2, "echo loss 1 of $RANK; echo other; echo pear, >&2; echo pear >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ]",
          {"--log_dir=" + folder / "logs", "--tee=3", "--duplicate_stdout_filters=loss,acc",
           "--duplicate_stderr_filters=pear,,", "--max_restarts=1"});
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_GE(count_of("other", end.output), 2) << "all is shown";
  const std::filesystem::path run_folder = std::filesystem::directory_iterator(folder / "logs")->path();
  const std::string lines = content(run_folder / "attempt_1/filtered_stdout.log");
  EXPECT_EQ(lines_with("[0]: ", lines), Words{"loss 1 of 0"});
  EXPECT_EQ(lines_with("[1]: ", lines), Words{"loss 1 of 1"});
  EXPECT_EQ(count_of("\n", lines), 2);
  EXPECT_EQ(count_of("]: pear,\n", content(run_folder / "attempt_1/filtered_stderr.log")), 2);
  EXPECT_EQ(content(run_folder / "attempt_1/1/stdout.log"), "loss 1 of 1\nother\n");
  EXPECT_TRUE(std::filesystem::exists(run_folder / "attempt_0/filtered_stdout.log"));
  expect_refused(run(1, "echo x", {"--tee=2", "--duplicate_stdout_filters=x"}),
                 "--duplicate_stdout_filters needs --tee for this stream of a local rank that is shown");
}

TEST_F(NarrowcastRunOutputTest, NeverMixesLines) {
  // Each rank writes its lines in two pieces, hundreds of times, at the same time as the others.
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

TEST_F(NarrowcastRunOutputTest, ShowsAllOfALargeOutput) {
  const ProgramEnd end = run(2, "yes 0123456789abcdef | head -n 100000");
  EXPECT_EQ(count_of("]: 0123456789abcdef\n", end.output), 200000);
}

TEST_F(NarrowcastRunOutputTest, LeavesOutputRawIfAsked) {
  const ProgramEnd end = run(1, "echo out; echo err >&2", {"--noprefix"});
  EXPECT_EQ(end.output, "out\n");
  EXPECT_EQ(end.errors, "err\n");
}

TEST_F(NarrowcastRunOutputTest, SendsOutputToFiles) {
  const ProgramEnd end = run(2, "echo out $RANK; echo err $RANK >&2", {"--log_dir=" + folder / "logs"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.output, "");
  const std::filesystem::path run_folder = std::filesystem::directory_iterator(folder / "logs")->path();
  EXPECT_THAT(end.errors, HasSubstr("output goes to " + run_folder.string() + "/attempt_0/RANK/stdout.log"));
  EXPECT_EQ(content(run_folder / "attempt_0/1/stdout.log"), "out 1\n");
  EXPECT_EQ(content(run_folder / "attempt_0/1/stderr.log"), "err 1\n");
}

TEST_F(NarrowcastRunOutputTest, GivesWorkersNoInput) {
  EXPECT_EQ(run(1, "read line || echo end of input").output, "[0]: end of input\n");
}

TEST_F(NarrowcastRunOutputTest, RunsWithoutStandardStreams) {
  const std::string file = folder / "written";
  const ProgramEnd end =
      run_to_end({"sh", "-c", kRun + " sh -c 'echo lost; echo kept > " + file + "' <&- >&- 2>&-; echo exit code $?"});
  EXPECT_EQ(end.output, "exit code 0\n");
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST_F(NarrowcastRunOutputTest, ShowsTheEndOfTheLogOfAFailedRank) {
  const ProgramEnd end = run(1, "echo why >&2; exit 4", {"--log_dir", folder.path().string()});
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_THAT(end.errors, AllOf(HasSubstr("/attempt_0/0/stderr.log"), HasSubstr("narrowcast-run:     why\n")));
}

TEST_F(NarrowcastRunOutputTest, EndsItsWorkersWhenNobodyReadsTheirOutput) {
  RunningProgram launcher(command(1, "echo pid $$; while echo more; do :; done; sleep 1000"));
  launcher.wait_for_output("more");
  launcher.close_output();
  const ProgramEnd end = launcher.wait();
  EXPECT_EQ(end.exit_code, 128 + SIGPIPE);
  EXPECT_FALSE(is_running(pids_after("pid ", end.output).at(0)));
}

TEST_F(NarrowcastRunOutputTest, GoesOnWhenItsOutputIsFull) {
  const std::string job =
      kRun + " --nproc_per_node=2 sh -c 'echo lost; echo seen >&2; echo > " + (folder / "$RANK") + "'";
  const ProgramEnd output = run_to_end({"sh", "-c", job + " > /dev/full"});
  EXPECT_EQ(output.exit_code, 0) << output.errors;
  EXPECT_EQ(count_of("narrowcast-run: standard output: ends here: No space left on device\n", output.errors), 1);
  EXPECT_EQ(count_of("]: seen\n", output.errors), 2);
  EXPECT_EQ(folder.entries(), 2);
  const ProgramEnd error = run_to_end({"sh", "-c", job + " 2> /dev/full"});
  EXPECT_EQ(error.exit_code, 0);
  EXPECT_EQ(count_of("narrowcast-run: standard error: ends here: No space left on device\n", error.output), 1);
  EXPECT_EQ(run_to_end({"sh", "-c", job + " > /dev/full 2>&1"}).exit_code, 0);
}

TEST_F(NarrowcastRunOutputTest, ShowsAndWritesWithTee) {
  const ProgramEnd end =
      run(2, "echo out $RANK; echo err $RANK >&2", {"--log_dir", folder.path().string(), "--tee=1:3"});
  EXPECT_EQ(lines_with("[0]: ", end.output), Words{"out 0"});
  EXPECT_EQ(lines_with("[1]: ", end.output), Words{"out 1"});
  EXPECT_EQ(lines_with("[1]: ", end.errors), Words{"err 1"});
  const std::filesystem::path ranks = std::filesystem::directory_iterator(folder.path())->path() / "attempt_0";
  EXPECT_EQ(content(ranks / "1/stdout.log"), "out 1\n");
  EXPECT_EQ(content(ranks / "1/stderr.log"), "err 1\n");
  EXPECT_FALSE(std::filesystem::exists(ranks / "0/stdout.log"));
}

TEST_F(NarrowcastRunOutputTest, RedirectsOneStreamOfOneRank) {
  const ProgramEnd end = run_to_end(command(2, "echo out $RANK; echo err $RANK >&2", {"--redirects=0:1"}),
                                    {{"TMPDIR", folder.path().string()}});
  EXPECT_EQ(end.output, "[1]: out 1\n");
  EXPECT_EQ(lines_with("[0]: ", end.errors), Words{"err 0"});
  const std::filesystem::path kept = std::filesystem::directory_iterator(folder.path())->path();
  EXPECT_THAT(end.errors, HasSubstr("output goes to " + kept.string()));
  EXPECT_EQ(content(kept / "attempt_0/0/stdout.log"), "out 0\n");
}

TEST_F(NarrowcastRunOutputTest, ShowsSomeRanksAlone) {
  // Rank 0 fails after rank 1 has written.
  const std::string fifo = folder / "fifo";
  const ProgramEnd end = run(3,
                             "mkfifo " + fifo + " 2>&-; echo out $RANK; case $RANK in 0) read line < " + fifo +
                                 "; echo why >&2; exit 7;; 1) echo > " + fifo + ";; esac; sleep 1000",
                             {"--local_ranks_filter=1"});
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_EQ(end.output, "[1]: out 1\n");
  EXPECT_THAT(end.errors, HasSubstr("narrowcast-run:     why\n"));  // from rank 0, which failed
}

}  // namespace
}  // namespace narrowcast::testing
