#include "trainer/launcher/failure_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/temporary_folder.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Lines = std::vector<std::string>;

Outcome outcome_of(Ending ending) {
  Outcome outcome;
  outcome.failure = WorkerFailure{1, 4321, ending, milliseconds(12345)};
  return outcome;
}

class FailureReportTest : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder;
};

TEST_F(FailureReportTest, NamesRankProcessEndingAndTime) {
  FailureDetails details;
  details.ended_at = "2026-01-02 03:04:05";
  EXPECT_THAT(
      failure_report(outcome_of({.exit_code = 7}), details),
      ElementsAre("rank 1 (pid 4321) failed first: exit code 7, 12.3 s after the start, at 2026-01-02 03:04:05"));
}

TEST_F(FailureReportTest, SaysWhatBecameOfTheOthers) {
  Outcome outcome = outcome_of({.exit_code = 7});
  outcome.stopped_ranks = 1;
  EXPECT_THAT(failure_report(outcome, {})[0], HasSubstr("; stopped 1 rank that ran"));
  outcome.stopped_ranks = 3;
  outcome.killed = true;
  EXPECT_THAT(failure_report(outcome, {})[0], HasSubstr("; stopped 3 ranks that ran, with SIGKILL"));
  outcome.left_behind = true;
  EXPECT_THAT(failure_report(outcome, {})[0], HasSubstr("not all processes could be ended"));
}

TEST_F(FailureReportTest, DescribesSignalsByName) {
  EXPECT_EQ(describe({.signal = SIGKILL}), "signal SIGKILL (Killed)");
  EXPECT_EQ(describe({.signal = SIGSEGV}), "signal SIGSEGV (Segmentation fault)");
  EXPECT_EQ(describe({.exit_code = 3}), "exit code 3");
}

TEST_F(FailureReportTest, ShowsTheWorkersOwnMessageAndLastLines) {
  FailureDetails details;
  details.error_file =
      folder.write("json", R"({"message": {"message": "disk full", "extraInfo": {"timestamp": "1"}}})");
  details.last_lines = {"one", "two"};
  const Lines lines = failure_report(outcome_of({.exit_code = 7}), details);
  EXPECT_EQ(Lines(lines.begin() + 1, lines.end()),
            (Lines{"its error: disk full", "its last lines on standard error:", "    one", "    two"}));
}

TEST_F(FailureReportTest, ReadsTheLastLinesOfALogFile) {
  FailureDetails details;
  details.log_file = folder.write("log", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n");
  const Lines lines = failure_report(outcome_of({.exit_code = 7}), details);
  EXPECT_EQ(lines[1], "its standard error is in " + details.log_file.string());
  EXPECT_EQ(lines[3], "    3");  // the last ten
  EXPECT_EQ(lines.back(), "    12");
}

TEST_F(FailureReportTest, ReadsBothFormsOfErrorFiles) {
  EXPECT_EQ(read_error_message(folder.write("nested", R"({"message": {"message": "M"}})")), "M");
  EXPECT_EQ(read_error_message(folder.write("flat", R"({"message": "M"})")), "M");
}

TEST_F(FailureReportTest, PutsUpWithBadErrorFiles) {
  for (const char* const text : {"", "{", "[]", "7", "{}", R"({"message": 7})", R"({"message": {"message": 7}})",
                                 R"({"message": {}})", "{\"message\": \"\xff\"}"}) {
    EXPECT_EQ(read_error_message(folder.write("bad", text)), "") << text;
  }
  EXPECT_EQ(read_error_message("/no/such"), "");
}

TEST_F(FailureReportTest, ReadsOnlyTheEndOfAHugeFile) {
  // More than the 64 KiB that are read: the line they begin in is not shown.
  std::string text = "\nlast\n";
  text.insert(0, 1 << 17, 'x');
  const auto path = folder.write("huge", text);
  EXPECT_THAT(read_last_lines(path, 10), ElementsAre("last"));
  EXPECT_THAT(read_last_lines(folder.write("none", ""), 10), IsEmpty());
  EXPECT_THAT(read_last_lines(folder.write("few", "a\nb"), 10), ElementsAre("a", "b"));
  EXPECT_THAT(read_last_lines("/no/such", 10), IsEmpty());
}

TEST_F(FailureReportTest, NamesTheSignalThatStoppedTheJob) {
  Outcome outcome;
  outcome.interrupted_by = SIGINT;
  outcome.stopped_ranks = 2;
  EXPECT_EQ(interruption_report(outcome), "stopped by SIGINT; stopped 2 ranks that ran");
}

}  // namespace
}  // namespace narrowcast::launcher
