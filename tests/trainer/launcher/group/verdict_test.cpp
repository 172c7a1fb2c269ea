#include "trainer/launcher/group/verdict.h"

#include <gtest/gtest.h>

#include <csignal>

#include "trainer/base/program/exit_code.h"

namespace narrowcast::launcher {
namespace {

using Kind = Verdict::Kind;
using Cause = GroupEnd::Cause;

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

RoundRules rules(bool elastic) { return {.elastic = elastic, .lost_because = "no sign of life for 10 s"}; }

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
  EXPECT_EQ(verdict.end.text, "node 1 (b) was lost: no sign of life for 10 s");
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

TEST(Verdict, RestartsForANewcomer) {
  RoundRules with_newcomer = rules(true);
  with_newcomer.newcomer = "c (pid 7)";
  const Verdict verdict = judge({done(1, NodeReport::End::kStopped), done(2)}, with_newcomer);
  EXPECT_EQ(verdict.kind, Kind::kRestart);
  EXPECT_EQ(verdict.end.text, "c (pid 7) came");
  EXPECT_EQ(judge({done(1), done(2)}, with_newcomer).end.cause, Cause::kSucceeded);
}

TEST(Verdict, EndsAStaticJobWhoseNodeGaveUp) {
  const Verdict verdict = judge({done(1), done(2, NodeReport::End::kStopped)}, rules(false));
  EXPECT_EQ(verdict.kind, Kind::kOver);
  EXPECT_EQ(verdict.end.text, "node 1 (b) stopped its workers by itself");
}

TEST(Verdict, EndsAJobWhoseProgramCannotBeStarted) {
  MemberResult refused = done(2, NodeReport::End::kRefused);
  refused.report->text = "./train: cannot be executed";
  const Verdict verdict = judge({done(1, NodeReport::End::kStopped), refused}, rules(true));
  EXPECT_EQ(verdict.kind, Kind::kOver);
  EXPECT_EQ(verdict.end.text, "node 1 (b): ./train: cannot be executed");
  EXPECT_EQ(verdict.end.exit_code(), program::kWrongUse);
}

TEST(Verdict, StartsNothingBesideWhatSurvived) {
  MemberResult stuck = failed(1, kSeven, 1000);
  stuck.report->left_behind = true;
  EXPECT_EQ(judge({stuck, done(2)}, rules(false)).kind, Kind::kOver);
}

}  // namespace
}  // namespace narrowcast::launcher
