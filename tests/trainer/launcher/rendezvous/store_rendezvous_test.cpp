#include "trainer/launcher/rendezvous/store_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>

#include "tests/support/patience.h"
#include "tests/trainer/launcher/rendezvous/store_fixture.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/store/store_host.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Kind = Directive::Kind;

Decision running() {
  Decision decision;
  decision.phase = Decision::Phase::kRunning;
  decision.round = 3;
  decision.run_id = "job";
  decision.members = {{.ticket = 1, .nproc = 2, .role = "a"},
                      {.ticket = 5, .nproc = 3, .role = "b"},
                      {.ticket = 4, .nproc = 1, .role = "a"}};
  return decision;
}

NodeState node(int64_t ticket) {
  return {.ticket = ticket, .master_addr = "10.0.0.1", .master_port = 29500, .max_restarts = 7};
}

TEST(DirectiveFor, GivesAMemberItsRanks) {
  const Directive directive = directive_for(running(), node(4));
  EXPECT_EQ(directive.kind, Kind::kRun);
  const Round& round = directive.round;
  EXPECT_EQ(round.node_rank, 2);
  EXPECT_EQ(round.nodes, 3);
  EXPECT_EQ(round.first_rank, 5);
  EXPECT_EQ(round.world_size, 6);
  EXPECT_EQ(round.role_first_rank, 2);  // two workers of node 0 have the same role
  EXPECT_EQ(round.role_world_size, 3);
  EXPECT_EQ(round.restart_count, 3);
  EXPECT_EQ(round.max_restarts, 7);
  EXPECT_EQ(round.run_id, "job");
  EXPECT_EQ(round.master_addr, "10.0.0.1");
}

TEST(DirectiveFor, StopsWhoHasReportedOrWasInterruptedOrIsToldTo) {
  NodeState reported = node(1);
  reported.reported_round = 3;
  EXPECT_EQ(directive_for(running(), reported).kind, Kind::kStop);
  NodeState interrupted = node(1);
  interrupted.interrupted = true;
  EXPECT_EQ(directive_for(running(), interrupted).kind, Kind::kStop);
  Decision stopping = running();
  stopping.phase = Decision::Phase::kStopping;
  EXPECT_EQ(directive_for(stopping, node(1)).kind, Kind::kStop);
  EXPECT_TRUE(directive_for(stopping, node(1)).awaits_report);
  EXPECT_FALSE(directive_for(stopping, reported).awaits_report);
  EXPECT_FALSE(directive_for(stopping, interrupted).awaits_report);
}

TEST(DirectiveFor, LetsOthersWait) {
  EXPECT_EQ(directive_for(running(), node(9)).kind, Kind::kWait);
  EXPECT_EQ(directive_for(running(), node(9)).note, "waiting: the job runs with 3 nodes");
  Decision forming;
  forming.note = "1 of 2 nodes";
  EXPECT_EQ(directive_for(forming, node(1)).note, "waiting: 1 of 2 nodes");
}

TEST(DirectiveFor, EndsWithTheJobOrWhenEvicted) {
  Decision over = running();
  over.phase = Decision::Phase::kOver;
  over.end = GroupEnd{.cause = GroupEnd::Cause::kAborted, .text = "lost", .code = 3};
  EXPECT_EQ(directive_for(over, node(1)).end->text, "lost");
  Decision evicting = running();
  evicting.evicted[9] = {.cause = GroupEnd::Cause::kAborted, .text = "late", .code = 2};
  EXPECT_EQ(directive_for(evicting, node(9)).kind, Kind::kOver);
  EXPECT_EQ(directive_for(evicting, node(9)).end->text, "late");
}

class StoreRendezvousTest : public StoreFixture {
 protected:
  // Waits for a directive of that kind and returns it.
  static Directive wait_for(StoreRendezvous& rendezvous, Kind kind) {
    const Clock::time_point deadline = Clock::now() + testing::kPatience;
    Directive directive = rendezvous.directive();
    while (directive.kind != kind && Clock::now() < deadline) {
      testing::pause_between_looks();
      directive = rendezvous.directive();
    }
    EXPECT_EQ(directive.kind, kind);
    return directive;
  }
};

TEST_F(StoreRendezvousTest, RunsAJobOnTwoNodes) {
  StoreRendezvous host(options(0));
  StoreRendezvous other(options(1));
  EXPECT_EQ(wait_for(host, Kind::kRun).round.node_rank, 0);
  const Round round = wait_for(other, Kind::kRun).round;
  EXPECT_EQ(round.node_rank, 1);
  EXPECT_EQ(round.world_size, 2);
  EXPECT_EQ(round.master_port, socket->port());
  host.report({});
  EXPECT_EQ(host.directive().kind, Kind::kStop);
  other.report({});
  EXPECT_EQ(wait_for(other, Kind::kOver).end->exit_code(), 0);
  EXPECT_EQ(wait_for(host, Kind::kOver).end->exit_code(), 0);
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(20);  // sooner than close_timeout
  while (!(host.may_leave() && other.may_leave()) && Clock::now() < deadline) {
    testing::pause_between_looks();
  }
  EXPECT_TRUE(host.may_leave());
}

TEST_F(StoreRendezvousTest, NoticesThatTheHostIsGone) {
  auto host = std::make_unique<StoreRendezvous>(options(0, milliseconds(3000)));
  StoreRendezvous other(options(1, milliseconds(3000)));
  wait_for(other, Kind::kRun);
  host.reset();
  store.reset();
  socket.reset();
  const Directive directive = wait_for(other, Kind::kOver);
  EXPECT_THAT(directive.end->text, HasSubstr("the launcher that served it has ended or was killed"));
  EXPECT_EQ(directive.end->exit_code(), program::kPeerFailed);
  EXPECT_TRUE(other.may_leave());
}

// The host's store still answers, while the host decides no more.
TEST_F(StoreRendezvousTest, NoticesThatTheHostDecidesNoMore) {
  const StorePtr served = store->store();
  StoreHost host(
      served, Coordinator(options(0).node, {.silence = testing::kPatience}, "made-up"), [] {}, {}, milliseconds(5));
  StoreMember own(served);
  own.join_as_host(options(0).node);
  StoreRendezvous other(options(1, milliseconds(3000)));
  Kind kind = Kind::kWait;
  for (Clock::time_point now{}; kind == Kind::kWait; now += milliseconds(1)) {
    own.beat();
    host.step(now);
    kind = other.directive().kind;
  }
  ASSERT_EQ(kind, Kind::kRun);
  const Directive directive = wait_for(other, Kind::kOver);
  EXPECT_THAT(directive.end->text, HasSubstr("no answer; the launcher that serves it hangs"));
  EXPECT_EQ(directive.end->exit_code(), program::kPeerFailed);
}

TEST_F(StoreRendezvousTest, NoticesThatANodeIsGone) {
  StoreRendezvous host(options(0, milliseconds(3000)));
  {
    StoreRendezvous other(options(1, milliseconds(3000)));
    wait_for(other, Kind::kRun);
  }
  wait_for(host, Kind::kStop);
  host.report({.end = NodeReport::End::kStopped});
  EXPECT_EQ(wait_for(host, Kind::kOver).end->text, "node 1 (h) was lost: no heartbeat for 3 s");
}

TEST_F(StoreRendezvousTest, GivesUpAHostThatCannotBeReached) {
  const LinkOptions wanted = options(1, testing::kPatience, milliseconds(300));
  store.reset();
  socket.reset();
  StoreRendezvous other(wanted);
  EXPECT_EQ(wait_for(other, Kind::kOver).end->text,
            "the store at 127.0.0.1:" + std::to_string(wanted.port) + ": cannot be reached: Connection refused");
}

TEST_F(StoreRendezvousTest, GivesUpAListenerThatNeverSpeaks) {
  store.reset();  // the socket still listens
  StoreRendezvous other(options(1, milliseconds(300), milliseconds(300)));
  EXPECT_EQ(wait_for(other, Kind::kOver).end->exit_code(), program::kPeerFailed);
}

TEST_F(StoreRendezvousTest, EndsAtASignalBeforeItsHostIsThere) {
  LinkOptions wanted = options(1);
  wanted.rendezvous.read_timeout = std::chrono::hours(1);
  store.reset();
  socket.reset();
  StoreRendezvous other(wanted);
  other.report({.end = NodeReport::End::kInterrupted, .signal = SIGINT});
  EXPECT_EQ(other.directive().end->exit_code(), 128 + SIGINT);
}

}  // namespace
}  // namespace narrowcast::launcher
