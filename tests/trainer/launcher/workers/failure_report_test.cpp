#include "trainer/launcher/workers/failure_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "trainer/launcher/workers/last_lines.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Lines = std::vector<std::string>;

GroupEnd failed(const FailureRecord& failure) { return {.cause = GroupEnd::Cause::kFailed, .failure = failure}; }

FailureRecord exit_seven() {
  return {.rank = 1,
          .pid = 4321,
          .node = "",
          .ending = {.exit_code = 7},
          .time_ms = 1767323045678,
          .after = milliseconds(12345)};
}

TEST(FailureReport, NamesRankProcessEndingAndTime) {
  setenv("TZ", "UTC", 1);
  EXPECT_THAT(
      describe_end(failed(exit_seven())),
      ElementsAre("rank 1 (pid 4321) failed first: exit code 7, 12.3 s after the start, at 2026-01-02 03:04:05"));
}

TEST(FailureReport, NamesTheNodeWhereThereAreSeveral) {
  FailureRecord failure = exit_seven();
  failure.node = "node 1 (beta)";
  EXPECT_THAT(describe_end(failed(failure))[0], HasSubstr("rank 1 on node 1 (beta) (pid 4321) failed first: "));
}

TEST(FailureReport, SaysWhatBecameOfTheOthers) {
  GroupEnd end = failed(exit_seven());
  end.stopped_ranks = 1;
  EXPECT_THAT(describe_end(end)[0], HasSubstr("; stopped 1 rank that ran"));
  end.stopped_ranks = 3;
  end.killed = true;
  EXPECT_THAT(describe_end(end)[0], HasSubstr("; stopped 3 ranks that ran, with SIGKILL"));
  end.left_behind = true;
  EXPECT_THAT(describe_end(end)[0], HasSubstr("not all processes could be ended"));
}

TEST(FailureReport, DescribesSignalsByName) {
  EXPECT_EQ(describe({.signal = SIGKILL}), "signal SIGKILL (Killed)");
  EXPECT_EQ(describe({.signal = SIGSEGV}), "signal SIGSEGV (Segmentation fault)");
  EXPECT_EQ(describe({.exit_code = 3}), "exit code 3");
}

TEST(FailureReport, ShowsMessageLogAndLastLines) {
  FailureRecord failure = exit_seven();
  failure.message = "disk full";
  failure.log_file = "logs/1/stderr.log";
  failure.last_lines = {"one", "two"};
  const Lines lines = describe_end(failed(failure));
  EXPECT_EQ(Lines(lines.begin() + 1, lines.end()),
            (Lines{"its error: disk full", "its standard error is in logs/1/stderr.log",
                   "its last lines on standard error:", "    one", "    two"}));
}

TEST(FailureReport, ShowsWhatATerminalWouldObey) {
  FailureRecord failure = exit_seven();
  failure.message = "red \x1b[31m\nsecond line";
  std::string endless;
  endless.resize(size_t{1} << 20, '\x1b');
  failure.last_lines = {"\x1b]0;title\x07", cut_text(endless)};
  const Lines lines = describe_end(failed(failure));
  EXPECT_EQ(lines.at(1), R"(its error: red \x1b[31m\nsecond line)");
  EXPECT_EQ(lines.at(3), R"(    \x1b]0;title\x07)");
  EXPECT_LE(lines.at(4).size(), 2 * kLongestText + 4);
  EXPECT_THAT(lines.at(4), HasSubstr(R"(\x1b\x1b)"));
}

TEST(FailureReport, NamesTheSignalThatStoppedTheJob) {
  GroupEnd end{.cause = GroupEnd::Cause::kInterrupted, .signal = SIGINT, .stopped_ranks = 2};
  EXPECT_THAT(describe_end(end), ElementsAre("stopped by SIGINT; stopped 2 ranks that ran"));
  end.text = "node 0 (alpha)";
  EXPECT_THAT(describe_end(end)[0], HasSubstr("stopped by SIGINT on node 0 (alpha); "));
}

TEST(FailureReport, HasNothingToSayAboutSuccess) {
  GroupEnd end;
  EXPECT_THAT(describe_end(end), IsEmpty());
  end.left_behind = true;
  EXPECT_THAT(describe_end(end)[0], HasSubstr("every rank succeeded, but not all processes"));
}

}  // namespace
}  // namespace narrowcast::launcher
