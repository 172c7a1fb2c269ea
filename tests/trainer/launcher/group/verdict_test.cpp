#include "trainer/launcher/group/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "trainer/base/program/failure.h"
#include "trainer/launcher/posix/last_lines.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Cause = GroupEnd::Cause;
using Kind = Verdict::Kind;
using Lines = std::vector<std::string>;

Member member(int64_t ticket) {
  return {.ticket = ticket, .name = ticket == 1 ? "node 0 (a)" : ticket == 2 ? "node 1 (b)" : "node 2 (c)"};
}

MemberResult done(int64_t ticket, NodeReport::End end = NodeReport::End::kSucceeded) {
  return {member(ticket), NodeReport{.end = end, .stopped_ranks = end == NodeReport::End::kStopped ? 2 : 0}};
}

MemberResult failed(int64_t ticket, Ending ending, int64_t time_ms) {
  FailureRecord record;
  record.rank = 10 * ticket;
  record.ending = ending;
  record.time_ms = time_ms;
  return {member(ticket), NodeReport{.end = NodeReport::End::kFailed, .failure = record}};
}

MemberResult interrupted(int64_t ticket) {
  return {member(ticket), NodeReport{.end = NodeReport::End::kInterrupted, .signal = SIGTERM}};
}

MemberResult lost(int64_t ticket) { return {member(ticket), std::nullopt}; }

constexpr Ending kSeven{.exit_code = 7};
constexpr Ending kBlamesPeer{.exit_code = program::kPeerFailed};

RoundRules rules(bool elastic) {
  return {.elastic = elastic, .survives_losses = elastic, .lost_because = "no heartbeat for 10 s"};
}

TEST(Verdict, IsOverWhenAllSucceeded) {
  const Verdict verdict = judge({done(1), done(2)}, rules(false));
  EXPECT_EQ(verdict.kind, Kind::kOver);
  EXPECT_EQ(verdict.end.cause, Cause::kSucceeded);
}

TEST(Verdict, NamesTheEarliestFailureOfAllNodes) {
  const Verdict verdict =
      judge({failed(1, kSeven, 2000), failed(2, {.signal = SIGSEGV}, 1000), done(3, NodeReport::End::kStopped)},
            rules(false));
  EXPECT_EQ(verdict.kind, Kind::kCountedRestart);
  EXPECT_EQ(verdict.end.failure->rank, 20);
  EXPECT_EQ(verdict.end.failure->node, "node 1 (b)");
  EXPECT_EQ(verdict.end.stopped_ranks, 2);
}

TEST(Verdict, DoesNotBlameWhoLostAPeer) {
  const Verdict verdict = judge({failed(1, kBlamesPeer, 1000), failed(2, kSeven, 2000)}, rules(false));
  EXPECT_EQ(verdict.end.failure->rank, 20);
  EXPECT_EQ(judge({failed(1, kBlamesPeer, 1000), done(2)}, rules(false)).end.failure->rank, 10);
}

TEST(Verdict, EndsAStaticJobThatLostANode) {
  const Verdict verdict = judge({failed(1, kBlamesPeer, 1000), lost(2)}, rules(false));
  EXPECT_EQ(verdict.kind, Kind::kOver);
  EXPECT_EQ(verdict.end.cause, Cause::kAborted);
  EXPECT_EQ(verdict.end.text, "node 1 (b) was lost: no heartbeat for 10 s");
  EXPECT_EQ(verdict.end.exit_code(), program::kPeerFailed);
}

TEST(Verdict, RestartsAnElasticJobThatLostANodeAndDoesNotCountIt) {
  const Verdict verdict = judge({failed(1, kBlamesPeer, 1000), lost(2)}, rules(true));
  EXPECT_EQ(verdict.kind, Kind::kRestart);
  EXPECT_EQ(verdict.end.cause, Cause::kMembership);
}

TEST(Verdict, CountsAFailureEvenIfANodeWasLostToo) {
  EXPECT_EQ(judge({failed(1, kSeven, 1000), lost(2)}, rules(true)).kind, Kind::kCountedRestart);
}

TEST(Verdict, EndsAStaticJobAtASignal) {
  const Verdict verdict = judge({done(1, NodeReport::End::kStopped), interrupted(2)}, rules(false));
  EXPECT_EQ(verdict.kind, Kind::kOver);
  EXPECT_EQ(verdict.end.exit_code(), 128 + SIGTERM);
  EXPECT_EQ(verdict.end.text, "node 1 (b)");
}

TEST(Verdict, DoesNotRestartAFailureAfterASignalThatEndsTheJob) {
  MemberResult both = failed(2, kSeven, 1000);
  both.report->signal = SIGTERM;
  const Verdict verdict = judge({done(1, NodeReport::End::kStopped), both}, rules(false));
  EXPECT_EQ(verdict.kind, Kind::kOver);
  EXPECT_EQ(verdict.end.exit_code(), 7);
  EXPECT_EQ(judge({done(1, NodeReport::End::kStopped), both}, rules(true)).kind, Kind::kCountedRestart);
}

TEST(Verdict, LetsANodeLeaveAnElasticJobButNotItsHost) {
  const Verdict verdict = judge({done(1, NodeReport::End::kStopped), interrupted(2)}, rules(true));
  EXPECT_EQ(verdict.kind, Kind::kRestart);
  EXPECT_EQ(verdict.end.text, "node 1 (b) left: SIGTERM");
  EXPECT_EQ(judge({interrupted(1), done(2, NodeReport::End::kStopped)}, rules(true)).kind, Kind::kOver);
}

// A signal to the ranks of one node makes the ranks of all nodes stop with a checkpoint. That is not a failure of the
// other nodes.
TEST(Verdict, LetsANodeLeaveThoughRanksOfOtherNodesEndWithItsSignalsCode) {
  const MemberResult follows = failed(1, {.exit_code = 128 + SIGTERM}, 1000);
  const Verdict verdict = judge({follows, interrupted(2)}, rules(true));
  EXPECT_EQ(verdict.kind, Kind::kRestart);
  EXPECT_EQ(verdict.end.text, "node 1 (b) left: SIGTERM");
  EXPECT_EQ(judge({follows, interrupted(2)}, rules(false)).end.exit_code(), 128 + SIGTERM);
  EXPECT_EQ(judge({failed(1, {.exit_code = 128 + SIGUSR1}, 1000), interrupted(2)}, rules(true)).kind,
            Kind::kCountedRestart)
      << "nobody was sent that signal";
  EXPECT_EQ(judge({failed(1, {.signal = SIGSEGV}, 1000), interrupted(2)}, rules(true)).kind, Kind::kCountedRestart);
  const Verdict alone = judge({follows, done(2, NodeReport::End::kStopped)}, rules(true));
  EXPECT_EQ(alone.kind, Kind::kCountedRestart) << "no launcher was sent a signal";
  EXPECT_EQ(alone.end.failure->rank, 10);
}

TEST(Verdict, RestartsForANewcomer) {
  RoundRules with_newcomer = rules(true);
  with_newcomer.newcomer = "c (pid 7)";
  const Verdict verdict = judge({done(1, NodeReport::End::kStopped), done(2)}, with_newcomer);
  EXPECT_EQ(verdict.kind, Kind::kRestart);
  EXPECT_EQ(verdict.end.text, "c (pid 7) joined");
  EXPECT_EQ(judge({done(1), done(2)}, with_newcomer).end.cause, Cause::kSucceeded);
}

TEST(Verdict, EndsAStaticJobWhoseNodeGaveUp) {
  const Verdict verdict = judge({done(1), done(2, NodeReport::End::kStopped)}, rules(false));
  EXPECT_EQ(verdict.kind, Kind::kOver);
  EXPECT_EQ(verdict.end.text, "node 1 (b) stopped its workers without a request");
}

TEST(Verdict, EndsAJobWhoseProgramCannotBeStarted) {
  MemberResult refused = done(2, NodeReport::End::kRefused);
  refused.report->text = "./train: cannot be executed";
  const Verdict verdict = judge({done(1, NodeReport::End::kStopped), refused}, rules(true));
  EXPECT_EQ(verdict.kind, Kind::kOver);
  EXPECT_EQ(verdict.end.text, "node 1 (b): ./train: cannot be executed");
  EXPECT_EQ(verdict.end.exit_code(), program::kWrongUse);
}

TEST(Verdict, EndsAJobThatHasRecoveredTooOften) {
  std::vector<MemberResult> results = {failed(1, kSeven, 2000), done(2, NodeReport::End::kStopped)};
  EXPECT_EQ(judge(results, rules(true)).kind, Kind::kCountedRestart);
  results[0].report->used_up = true;
  EXPECT_EQ(judge(results, rules(true)).kind, Kind::kOver);
  EXPECT_EQ(judge(results, rules(true)).end.exit_code(), 7);
}

TEST(Verdict, KeepsTheFailureThatANewProcessWasToMend) {
  std::vector<MemberResult> results = {failed(1, kBlamesPeer, 1000), failed(2, kSeven, 2000)};
  results[1].report->before = failed(2, {.signal = SIGKILL}, 1000).report->failure;
  const GroupEnd end = judge(results, rules(false)).end;
  EXPECT_EQ(end.exit_code(), 128 + SIGKILL);
  EXPECT_EQ(end.before->node, "node 1 (b)");
}

TEST(Verdict, StartsNothingBesideWhatSurvived) {
  MemberResult stuck = failed(1, kSeven, 1000);
  stuck.report->left_behind = true;
  EXPECT_EQ(judge({stuck, done(2)}, rules(false)).kind, Kind::kOver);
}

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
  EXPECT_THAT(describe_end(end)[0], HasSubstr("; stopped 1 running rank"));
  end.stopped_ranks = 3;
  end.killed = true;
  EXPECT_THAT(describe_end(end)[0], HasSubstr("; stopped 3 running ranks, with SIGKILL"));
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

TEST(FailureReport, TellsOfTheFailureThatARestartWasToMend) {
  GroupEnd end = failed(exit_seven());
  end.before = FailureRecord{.rank = 3, .pid = 9, .node = "", .ending = {.signal = SIGKILL}};
  end.before->last_lines = {"one"};
  end.text = "not restarted, because it would fail in the same way";
  const Lines lines = describe_end(end);
  ASSERT_EQ(lines.size(), 6);
  EXPECT_THAT(lines[0], HasSubstr("rank 1 (pid 4321) failed first: exit code 7"));
  EXPECT_EQ(lines[1], "the failure that caused this restart, and that ends the job:");
  EXPECT_THAT(lines[2], HasSubstr("rank 3 (pid 9) failed first: signal SIGKILL (Killed)"));
  EXPECT_EQ(lines[4], "    one");
  EXPECT_EQ(lines[5], end.text);
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

TEST(FailureReport, TellsOfARankWhosePlaceANewProcessTakes) {
  FailureRecord record;
  record.rank = 2;
  record.pid = 123;
  record.ending = {.signal = SIGKILL};
  EXPECT_THAT(describe_replacement(record, "1 of 3"),
              ElementsAre("rank 2 (pid 123) was ended by SIGKILL; a new process takes its place (1 of 3)"));
  record.ending = kSeven;
  record.message = "no memory";
  record.last_lines = {"line"};
  EXPECT_THAT(describe_replacement(record, "2 of 3"),
              ElementsAre("rank 2 (pid 123) ended with exit code 7; a new process takes its place (2 of 3)",
                          "its error: no memory"));
}

TEST(FailureReport, NamesTheSignalThatStoppedTheJob) {
  GroupEnd end{.cause = GroupEnd::Cause::kInterrupted, .signal = SIGINT, .stopped_ranks = 2};
  EXPECT_THAT(describe_end(end), ElementsAre("stopped by SIGINT; stopped 2 running ranks"));
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
