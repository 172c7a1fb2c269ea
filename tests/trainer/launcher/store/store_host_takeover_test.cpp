// A host that continues the round of another, and launchers that join it, with a secret and without.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>
#include <vector>

#include "tests/support/job_secret.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/rendezvous/store_rendezvous.h"
#include "trainer/launcher/store/hosted_store.h"
#include "trainer/launcher/store/store_host.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using Phase = Decision::Phase;

// A round of nodes with these tickets.
Decision round_of(const std::vector<int64_t>& tickets, int64_t changes) {
  Decision decision{.phase = Phase::kRunning, .run_id = "job7", .changes = changes, .changes_in_place = true};
  for (const int64_t ticket : tickets) {
    decision.members.push_back({.ticket = ticket, .name = "node " + std::to_string(ticket)});
  }
  return decision;
}

// The last member is new.
Decision newcomer_last(Decision decision) {
  decision.members.back().is_new = true;
  return decision;
}

// The launcher with ticket 2 takes over from the one with ticket 1. It knows members 1 to 5.
class TakeOverTest : public ::testing::TestWithParam<bool> {
 protected:
  TakeOverTest()
      : TakeOverTest({.backend = "c10d", .min_nodes = 1, .max_nodes = 9, .max_restarts = 1, .in_place = true},
                     {.decision = round_of({1, 2, 3, 4, 5}, 4), .ticket = 2}) {}

  TakeOverTest(GroupSettings settings, Succession succession) : settings_(std::move(settings)) {
    if (GetParam()) {
      secret_ = testing::secret_of("what the launchers know");
    }
    const JobSeal seal = {.secret = secret_, .job = "job", .session = GetParam() ? "session" : ""};
    succession.store = "b:1";
    succession.lost = {{1, "it was killed"}};
    const NodeDescription node = described(succession.ticket);
    host.emplace(
        store, Coordinator(node, {.silence = milliseconds(60'000)}, succession), [] {}, seal);
    host->take_over(succession, kPatience);
    own.emplace(store, seal);
    own->join_again_as_host(node, succession.ticket);
  }

  // The sixth and the seventh launcher come in the places of the second and of the first.
  NodeDescription described(int64_t ticket) const {
    return {.host = std::string(1, static_cast<char>('a' + ticket - 1)),
            .pid = 7,
            .node_rank = ticket <= 5 ? ticket - 1 : 7 - ticket,
            .settings = settings_};
  }

  // Joins with what that launcher knows, and returns whether it was let in.
  bool joins(int64_t ticket, const Decision& known) {
    const auto [entry, is_new] = others.try_emplace(ticket, store, JobSeal{.secret = secret_, .job = "job"});
    NodeDescription node = described(ticket);
    node.known = last_known(known, 7);
    return is_let_in([&] { return entry->second.join_again(node, {.decision = known, .ticket = ticket}); });
  }

  // Joins as one that comes anew.
  bool comes(int64_t ticket) {
    StoreMember& member = others.try_emplace(ticket, store, JobSeal{.secret = secret_, .job = "job"}).first->second;
    return is_let_in([&] { return member.join(described(ticket)); }) && member.ticket() == ticket;
  }

  template <class Join>
  bool is_let_in(const Join& join) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      if (join()) {
        return true;
      }
      step();
    }
    return false;
  }

  const Decision& step(int64_t time = 0) {
    host->step(Clock::time_point(milliseconds(time)));
    return host->decision();
  }
  void beat() {
    own->beat();
    for (auto& [ticket, other] : others) {
      other.beat();
    }
  }
  std::vector<int64_t> members() { return last_known(host->decision(), 0).members; }
  Directive directive(int64_t ticket) {
    NodeState state;
    state.ticket = ticket;
    state.round = 0;
    return directive_for(others.at(ticket).decision(), state);
  }

  static constexpr milliseconds kPatience{3000};
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::optional<StoreHost> host;
  std::optional<StoreMember> own;
  std::map<int64_t, StoreMember> others;
  const Decision same = round_of({1, 2, 3, 4, 5}, 4);
  const Decision newer = newcomer_last(round_of({1, 2, 3, 4, 5, 6}, 5));  // The lost host had taken in the sixth.

 private:
  const GroupSettings settings_;
  std::optional<program::JobSecret> secret_;
};

TEST_P(TakeOverTest, NobodyDecidesBeforeAllHaveCome) {
  EXPECT_TRUE(joins(3, same));
  EXPECT_TRUE(joins(4, same));
  EXPECT_EQ(step().store, "");
  EXPECT_TRUE(joins(5, same));
  EXPECT_EQ(step().store, "b:1");
  EXPECT_EQ(members(), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(host->decision().changes, 5);
}

TEST_P(TakeOverTest, ANewcomerThatOnlyOthersKnowOfIsWaitedFor) {
  EXPECT_TRUE(joins(3, same));
  EXPECT_TRUE(joins(4, newer));
  EXPECT_TRUE(joins(5, same));
  EXPECT_EQ(step().store, "");
  EXPECT_TRUE(joins(6, newer));
  EXPECT_EQ(step().store, "b:1");
  EXPECT_EQ(members(), (std::vector<int64_t>{2, 3, 4, 5, 6}));
  EXPECT_GT(host->decision().changes, 6) << "5 has other members, and so have those that this host began with";
  for (const Member& member : host->decision().members) {
    EXPECT_EQ(member.is_new, member.ticket == 6) << member.ticket;
  }
  EXPECT_EQ(store->get_to_str(rendezvous::job_prefix("job7") + "/" + rendezvous::kPlaces), "5 2:1,3:1,4:1,5:1 6:1");
  EXPECT_EQ(directive(6).kind, Directive::Kind::kRun);
}

// Also if the newcomer that had the last one comes late, or never.
TEST_P(TakeOverTest, WhoComesNextGetsATicketOfItsOwn) {
  for (const int64_t ticket : {3, 4, 5}) {
    EXPECT_TRUE(joins(ticket, newer));
  }
  EXPECT_EQ(step(0).store, "");
  EXPECT_EQ(step(kPatience.count()).store, "b:1");
  EXPECT_EQ(store->add(std::string(kLauncherKeys) + "tickets", 1), 7);
}

TEST_P(TakeOverTest, AMemberThatComesLateLearnsThatItIsLost) {
  EXPECT_TRUE(joins(3, same));
  EXPECT_TRUE(joins(4, same));
  step(0);
  EXPECT_EQ(step(kPatience.count()).store, "b:1");
  ASSERT_TRUE(joins(5, same));
  EXPECT_EQ(directive(5).kind, Directive::Kind::kOver);
  EXPECT_EQ(directive(5).end->text, "the host removed this launcher from the job: it does not answer");
  step(kPatience.count() + 100);
  EXPECT_EQ(members(), (std::vector<int64_t>{2, 3, 4}));
}

// It runs its workers in a change that nobody else knows.
TEST_P(TakeOverTest, ANewcomerThatComesLateEnds) {
  for (const int64_t ticket : {3, 4, 5}) {
    EXPECT_TRUE(joins(ticket, same));
  }
  EXPECT_EQ(step().store, "b:1");
  ASSERT_TRUE(joins(6, newer));
  EXPECT_EQ(directive(6).kind, Directive::Kind::kOver);
  EXPECT_EQ(directive(6).end->code, program::kPeerFailed);
  EXPECT_EQ(directive(6).end->text, "the launcher that took over as the host goes on without this one");
  step(100);
  EXPECT_EQ(members(), (std::vector<int64_t>{2, 3, 4, 5})) << "its place is not taken again";
}

// The last that this host knows is that the fifth node was new, and that the sixth launcher waited for a place.
class OldNewsTakeOverTest : public TakeOverTest {
 protected:
  OldNewsTakeOverTest()
      : TakeOverTest({.backend = "c10d", .min_nodes = 1, .max_nodes = 5, .max_restarts = 1, .in_place = true},
                     {.decision = old_news(), .ticket = 2}) {}

  static Decision old_news() {
    Decision decision = newcomer_last(round_of({1, 2, 3, 4, 5}, 4));
    decision.spares = {6};
    return decision;
  }
  std::string places() const { return store->get_to_str(rendezvous::job_prefix("job7") + "/" + rendezvous::kPlaces); }
};

TEST_P(OldNewsTakeOverTest, ANodeHasMetTheOthersIfAnyoneKnowsIt) {
  EXPECT_TRUE(joins(3, old_news()));
  EXPECT_TRUE(joins(4, same));
  EXPECT_TRUE(joins(5, old_news()));
  EXPECT_TRUE(joins(6, old_news()));
  EXPECT_EQ(step().store, "b:1");
  EXPECT_FALSE(host->decision().members[3].is_new);
  EXPECT_EQ(places(), "5 2:1,3:1,4:1,5:1 6:1");
}

TEST_P(OldNewsTakeOverTest, ANodeIsNewIfNobodyKnowsBetter) {
  for (const int64_t ticket : {3, 4, 5, 6}) {
    EXPECT_TRUE(joins(ticket, old_news()));
  }
  EXPECT_EQ(step().store, "b:1");
  EXPECT_TRUE(host->decision().members[3].is_new);
  EXPECT_EQ(places(), "5 2:1,3:1,4:1 5:1,6:1");
}

TEST_P(OldNewsTakeOverTest, ASpareIsInTheFirstChange) {
  for (const int64_t ticket : {3, 4, 5}) {
    EXPECT_TRUE(joins(ticket, old_news()));
  }
  EXPECT_EQ(step(0).store, "") << "it may come a moment later";
  EXPECT_TRUE(joins(6, old_news()));
  EXPECT_EQ(step(1).changes, 5);
  EXPECT_EQ(members(), (std::vector<int64_t>{2, 3, 4, 5, 6}));
  EXPECT_EQ(host->decision().spares, std::vector<int64_t>());
}

TEST_P(OldNewsTakeOverTest, ASpareIsNotWaitedForForLong) {
  EXPECT_TRUE(joins(3, old_news()));
  EXPECT_TRUE(joins(4, old_news()));
  EXPECT_EQ(step(0).store, "");
  EXPECT_TRUE(joins(5, old_news()));
  EXPECT_EQ(step(500).store, "");
  EXPECT_EQ(step(1499).store, "");
  EXPECT_EQ(step(1500).store, "b:1");
  EXPECT_EQ(members(), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(store->add(std::string(kLauncherKeys) + "tickets", 1), 7) << "nobody else gets its ticket";
  EXPECT_TRUE(joins(6, old_news()));
  EXPECT_EQ(step(1600).changes, 6);
  EXPECT_EQ(members(), (std::vector<int64_t>{2, 3, 4, 5, 6}));
}

TEST_P(OldNewsTakeOverTest, ASpareThatHasNotComeIsStillKnown) {
  for (const int64_t ticket : {3, 4, 5}) {
    EXPECT_TRUE(joins(ticket, old_news()));
  }
  step(0);
  EXPECT_EQ(step(1000).store, "b:1");
  EXPECT_EQ(host->decision().spares, std::vector<int64_t>{6});
  beat();
  step(61'001);
  EXPECT_EQ(host->decision().spares, std::vector<int64_t>()) << "it would have come";
}

// Another launcher may have drawn its ticket here.
TEST_P(OldNewsTakeOverTest, ASpareThatTheHostDoesNotKnowDrawsAnotherTicket) {
  for (const int64_t ticket : {3, 4, 5, 6, 7}) {
    EXPECT_TRUE(joins(ticket, old_news()));
  }
  EXPECT_EQ(others.at(6).ticket(), 6);
  EXPECT_EQ(others.at(7).ticket(), 8);
  step(0);
  EXPECT_EQ(host->decision().spares, std::vector<int64_t>{8}) << "there are places for five";
}

// The last that this host knows is that the seventh launcher waited for a place.
class GapTakeOverTest : public TakeOverTest {
 protected:
  GapTakeOverTest()
      : TakeOverTest({.backend = "c10d", .min_nodes = 1, .max_nodes = 9, .max_restarts = 1, .in_place = true},
                     {.decision = spare_last(), .ticket = 2}) {}

  static Decision spare_last() {
    Decision decision = round_of({1, 2, 3, 4, 5}, 4);
    decision.spares = {7};
    return decision;
  }
};

TEST_P(GapTakeOverTest, AMemberWithATicketBelowASparesIsSeen) {
  for (const int64_t ticket : {3, 4, 5, 6, 7}) {
    EXPECT_TRUE(joins(ticket, ticket == 7 ? spare_last() : newer));
  }
  EXPECT_EQ(step().store, "b:1");
  EXPECT_EQ(members(), (std::vector<int64_t>{2, 3, 4, 5, 6, 7}));
  ASSERT_TRUE(comes(8));
}

TEST_P(TakeOverTest, NobodyJoinsAnotherJob) {
  Decision other = same;
  other.run_id = "job8";
  EXPECT_FALSE(joins(3, other));
  EXPECT_TRUE(joins(4, same));
}

// A launcher that finds the decision may draw a ticket at once.
TEST(TakeOver, NobodyDrawsATicketThatAnotherHas) {
  const Succession succession = {.decision = round_of({1, 2, 3, 4, 5}, 4), .ticket = 2, .store = "b:1"};
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const StoreHost host(store, Coordinator({}, {}, succession), [] {});
  ASSERT_TRUE(StoreMember(store).has_host());
  EXPECT_EQ(store->add(std::string(kLauncherKeys) + "tickets", 1), 6);
}

// The launcher with ticket 3 takes over. The last that it knows is that the second node was lost.
class StaticTakeOverTest : public TakeOverTest {
 protected:
  StaticTakeOverTest()
      : TakeOverTest({.backend = "static", .min_nodes = 5, .max_nodes = 5, .max_restarts = 1, .in_place = true},
                     {.decision = waiting(), .ticket = 3}) {}

  static Decision waiting() {
    Decision decision = round_of({1, 2, 3, 4, 5}, 4);
    decision.evicted[2] = {.cause = GroupEnd::Cause::kAborted, .text = "lost", .code = program::kPeerFailed};
    return decision;
  }

  const Decision replaced = round_of({1, 6, 3, 4, 5}, 5);
};

TEST_P(StaticTakeOverTest, ANodeThatOnlyOthersKnowOfKeepsItsPlace) {
  EXPECT_TRUE(joins(4, replaced));
  EXPECT_TRUE(joins(5, same));
  EXPECT_TRUE(joins(6, replaced));
  EXPECT_EQ(step().store, "b:1");
  EXPECT_EQ(host->decision().note, "4 of 5 nodes have joined; missing: --node_rank 0");
  EXPECT_EQ(members(), (std::vector<int64_t>{1, 6, 3, 4, 5}));
  EXPECT_EQ(directive(6).kind, Directive::Kind::kRun);
  EXPECT_EQ(directive(6).round.node_rank, 1);
  EXPECT_EQ(directive(5).round.changes, 6);
  ASSERT_TRUE(comes(7));
  EXPECT_EQ(step().changes, 7);
  EXPECT_EQ(members(), (std::vector<int64_t>{7, 6, 3, 4, 5}));
}

TEST_P(StaticTakeOverTest, AKnownNodeThatDoesNotComeIsLost) {
  EXPECT_TRUE(joins(4, replaced));
  EXPECT_TRUE(joins(5, same));
  EXPECT_EQ(step(0).store, "");
  EXPECT_EQ(step(kPatience.count()).store, "b:1");
  EXPECT_EQ(members(), (std::vector<int64_t>{1, 2, 3, 4, 5})) << "nobody knows more of the sixth";
  EXPECT_EQ(host->decision().note, "3 of 5 nodes have joined; missing: --node_rank 0, 1");
  ASSERT_TRUE(comes(7));
  EXPECT_EQ(step(kPatience.count() + 100).note, "4 of 5 nodes have joined; missing: --node_rank 1");
  EXPECT_EQ(host->decision().phase, Phase::kRunning);
}

TEST_P(StaticTakeOverTest, ANodeThatWasLostBeforeTheHostIsNotWaitedFor) {
  EXPECT_TRUE(joins(4, same));
  EXPECT_TRUE(joins(5, same));
  EXPECT_EQ(step().store, "b:1");
  EXPECT_EQ(host->decision().note, "3 of 5 nodes have joined; missing: --node_rank 0, 1");
}

INSTANTIATE_TEST_SUITE_P(Secret, GapTakeOverTest, ::testing::Bool());
INSTANTIATE_TEST_SUITE_P(Secret, OldNewsTakeOverTest, ::testing::Bool());
INSTANTIATE_TEST_SUITE_P(Secret, StaticTakeOverTest, ::testing::Bool());
INSTANTIATE_TEST_SUITE_P(Secret, TakeOverTest, ::testing::Bool());

}  // namespace
}  // namespace narrowcast::launcher
