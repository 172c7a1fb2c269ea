#include "trainer/launcher/rendezvous/store_link.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/job_secret.h"
#include "tests/support/patience.h"
#include "tests/trainer/launcher/rendezvous/store_fixture.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/store/store_host.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using Phase = Decision::Phase;

TEST(PatientClock, LeavesOutMostOfATimeInWhichNobodyAsked) {
  PatientClock clock;
  const Clock::time_point before = clock.now();
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_EQ(clock.now() - before, milliseconds(1000));
}

class StoreLinkTest : public StoreFixture {
 protected:
  // Returns the link's state once it satisfies `wanted`.
  static LinkState wait_for(const StoreLink& link, const std::function<bool(const LinkState&)>& wanted) {
    const Clock::time_point deadline = Clock::now() + testing::kPatience;
    LinkState state = link.state();
    while (!wanted(state) && state.broken.empty() && Clock::now() < deadline) {
      testing::pause_between_looks();
      state = link.state();
    }
    EXPECT_TRUE(wanted(state)) << state.broken;
    return state;
  }
  static std::function<bool(const LinkState&)> phase_is(Phase phase) {
    return [phase](const LinkState& state) { return state.decision && state.decision->phase == phase; };
  }
  static bool is_broken(const LinkState& state) { return !state.broken.empty(); }
};

TEST_F(StoreLinkTest, JoinsTheGroupAndBringsItsDecisions) {
  const StoreLink host(options(0));
  const StoreLink other(options(1));
  const LinkState state = wait_for(other, phase_is(Phase::kRunning));
  EXPECT_GT(state.answers, 0);
  EXPECT_EQ(state.decision->run_id, "made-up");
  EXPECT_EQ(state.decision->members.size(), 2U);
  EXPECT_EQ(wait_for(host, phase_is(Phase::kRunning)).ticket, 1);  // even if the other one is faster
  EXPECT_EQ(state.ticket, 2);
}

TEST_F(StoreLinkTest, CarriesReportsAndWhoHasLeft) {
  StoreLink host(options(0));
  StoreLink other(options(1));
  for (const StoreLink* link : {&host, &other}) {
    wait_for(*link, phase_is(Phase::kRunning));  // A node reports on a round that it has seen.
  }
  host.report({.round = 0, .report = {}});
  other.report({.round = 0, .report = {}});
  EXPECT_FALSE(wait_for(host, phase_is(Phase::kOver)).others_left);
  other.leave();
  wait_for(other, [](const LinkState& state) { return state.left; });
  wait_for(host, [](const LinkState& state) { return state.others_left; });
}

// Its thread may be left behind in a request when all other objects are gone.
TEST_F(StoreLinkTest, KeepsTheStoreThatItServes) {
  const std::weak_ptr<HostedStore> watched = store;
  {
    const StoreLink host(options(0));
    store.reset();
    wait_for(host, [](const LinkState& state) { return state.answers > 2; });
    EXPECT_FALSE(watched.expired());
  }
  const Clock::time_point deadline = Clock::now() + testing::kPatience;
  while (!watched.expired() && Clock::now() < deadline) testing::pause_between_looks();
  EXPECT_TRUE(watched.expired()) << "the thread has ended";
}

// The host may be lost before it has read that, or before others have read it.
TEST_F(StoreLinkTest, NotesThatItsRanksHaveMetTheOthers) {
  LinkOptions wanted = options(1);
  wanted.node.settings = {.backend = "c10d", .min_nodes = 1, .max_nodes = 2, .max_restarts = 1, .in_place = true};
  const StorePtr served = store->store();
  const GroupTimeouts timeouts = {.last_call = milliseconds(0), .silence = testing::kPatience};
  StoreHost host(
      served, Coordinator(wanted.node, timeouts, "made-up"), [] {}, {}, milliseconds(5));
  StoreMember own(served);
  own.join_as_host(wanted.node);
  Clock::time_point now{};
  const auto step = [&] {
    own.beat();
    host.step(now += milliseconds(1));
    return host.decision();
  };
  while (step().phase != Phase::kRunning) {
  }
  const std::string ranks = rendezvous::job_prefix("made-up") + "/";
  served->set(ranks + rendezvous::kRegroups, std::string(rendezvous::kWhenReady));
  const StoreLink other(wanted);
  while (step().members.size() < 2) {
  }
  const auto is_new = [](const LinkState& state) {
    return state.decision && state.decision->members.size() == 2 && state.decision->members[1].is_new;
  };
  wait_for(other, is_new);
  served->set(ranks + rendezvous::met_key(2), std::string("1"));
  wait_for(other, [&](const LinkState& state) { return !is_new(state); });
  EXPECT_EQ(last_known(*other.state().decision, 0).met, (std::vector<int64_t>{1, 2}));
}

TEST_F(StoreLinkTest, TellsRanksWhoHasEnded) {
  const StoreLink host(options(0));
  StoreLink other(options(1));
  wait_for(other, phase_is(Phase::kRunning));
  other.rank_succeeded({.node = 2, .rank_on_node = 1});
  const std::string key = rendezvous::job_prefix("made-up") + "/" + rendezvous::kEndedRank;
  wait_for(other, [&](const LinkState&) { return store->store()->check({key}); });
  EXPECT_EQ(store->store()->get_to_str(key), "2/1");
}

TEST_F(StoreLinkTest, AnnouncesStarts) {
  StoreLink host(options(0));
  StoreLink other(options(1));
  wait_for(other, phase_is(Phase::kRunning));
  wait_for(host, phase_is(Phase::kRunning));
  other.announce_start({1});
  wait_for(other, [](const LinkState& state) { return state.starts == std::map<RankOfNode, int64_t>{{{1}, 1}}; });
  host.announce_start({0});
  wait_for(host, [](const LinkState& state) { return state.starts == std::map<RankOfNode, int64_t>{{{0}, 2}}; });
  other.announce_start({1});
  EXPECT_FALSE(other.state().starts.contains({1}) && other.state().starts.at({1}) == 1) << "the last one counts";
  wait_for(other, [](const LinkState& state) { return state.starts == std::map<RankOfNode, int64_t>{{{1}, 3}}; });
  const std::string key = rendezvous::job_prefix("made-up") + "/" + rendezvous::kStarts;
  EXPECT_EQ(store->store()->get_to_str(key), "3");
}

TEST_F(StoreLinkTest, ReadsWhichRanksAreSilent) {
  const StoreLink host(options(0));
  StoreLink other(options(1));
  wait_for(other, phase_is(Phase::kRunning));
  const auto report = [&](int64_t rank) {
    store->store()->set(rendezvous::job_prefix("made-up") + "/" + rendezvous::silent_key(rank, 0), {'0'});
  };
  report(0);
  report(1);
  other.watch({{1}, {2}});
  wait_for(other, [](const LinkState& state) { return state.silent == SilentRanks{{{1}, 0}}; });
  report(2);
  wait_for(other, [](const LinkState& state) { return state.silent == SilentRanks{{{1}, 0}, {{2}, 0}}; });
  other.watch({});
  EXPECT_EQ(other.state().silent, SilentRanks()) << "at once: the next round must not see them";
}

// The connections of this process to a port of 127.0.0.1.
std::set<int> connections_to(int64_t port) {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && ntohs(peer.sin_port) == port) {
      found.insert(descriptor);
    }
  }
  return found;
}

class BrokenConnectionTest : public StoreLinkTest, public ::testing::WithParamInterface<bool> {
 protected:
  LinkOptions options_of(int64_t node_rank) {
    LinkOptions wanted = options(node_rank);
    if (GetParam()) {
      wanted.seal.secret = testing::secret_of("0123456789abcdef0123456789abcdef");
    }
    return wanted;
  }
};

TEST_P(BrokenConnectionTest, ToAHostThatLivesIsMadeAnew) {
  StoreLink host(options_of(0));
  const std::set<int> of_host = connections_to(socket->port());
  StoreLink other(options_of(1));
  wait_for(other, phase_is(Phase::kRunning));
  wait_for(host, phase_is(Phase::kRunning));
  for (int64_t time = 1; time <= 3; ++time) {
    for (const int descriptor : connections_to(socket->port())) {
      if (!of_host.contains(descriptor)) {
        ::shutdown(descriptor, SHUT_RDWR);
      }
    }
    other.announce_start({.node = 2});
    const LinkState state = wait_for(other, [&](const LinkState& now) { return now.starts.contains({.node = 2}); });
    EXPECT_GE(state.starts.at({.node = 2}), time);
  }
  const int64_t answers = other.state().answers;
  wait_for(other, [&](const LinkState& now) { return now.answers > answers; });
  host.report({.round = 0, .report = {}});
  other.report({.round = 0, .report = {}});
  wait_for(other, phase_is(Phase::kOver));
}

TEST_P(BrokenConnectionTest, IsNotMadeAnewToAnotherHost) {
  std::optional<StoreLink> host(options_of(0));
  const StoreLink other(options_of(1));
  wait_for(other, phase_is(Phase::kRunning));
  host.reset();
  store.reset();
  store = std::make_shared<HostedStore>("127.0.0.1", *socket);
  LinkOptions wanted = options_of(0);
  wanted.run_id = "another";
  const StoreLink next(wanted);
  const auto follows = [&] { return other.state().decision->run_id != "made-up"; };
  const Clock::time_point deadline = Clock::now() + testing::kPatience;
  while (!is_broken(other.state()) && !follows() && Clock::now() < deadline) testing::pause_between_looks();
  EXPECT_EQ(other.state().broken, "the launcher that served it has ended or was killed");
}

INSTANTIATE_TEST_SUITE_P(WithASecret, BrokenConnectionTest, ::testing::Bool());

TEST_F(StoreLinkTest, AHostThatHasEndedIsNotWaitedFor) {
  std::optional<StoreLink> host(options(0));
  LinkOptions wanted = options(1);
  const StoreLink other(wanted);
  wait_for(other, phase_is(Phase::kRunning));
  const Clock::time_point begin = Clock::now();
  host.reset();
  store.reset();
  socket.reset();
  const Clock::time_point deadline = begin + testing::kPatience;
  while (!is_broken(other.state()) && Clock::now() < deadline) testing::pause_between_looks();
  EXPECT_EQ(other.state().broken, "the launcher that served it has ended or was killed");
  EXPECT_LT(Clock::now() - begin, wanted.rendezvous.silence() / 2) << "it is known at once";
}

TEST_F(StoreLinkTest, SaysWhyAHostCannotBeReached) {
  const testing::SilentPort silent;
  LinkOptions wanted = options(1, testing::kPatience, milliseconds(300));
  wanted.port = silent.port();
  const StoreLink other(wanted);
  EXPECT_EQ(wait_for(other, is_broken).broken, "cannot be reached: Connection refused");
}

TEST_F(StoreLinkTest, SaysWhatItCannotReadOfADecision) {
  const StoreLink host(options(0));
  const StoreLink other(options(1));
  wait_for(other, phase_is(Decision::Phase::kRunning));  // The host has nothing more to write.
  store->store()->set(kLauncherKeys + std::string("decision"), std::vector<uint8_t>{'t'});
  EXPECT_THAT(wait_for(other, is_broken).broken,
              ::testing::HasSubstr("the launchers' store does not hold the decision: "));
}

// Each heartbeat is overwritten many times between two reads, for more than three heartbeat timeouts.
TEST_F(StoreLinkTest, ASecretKeepsAJobAliveWhoseSignsAStrangerOverwrites) {
  constexpr milliseconds kSilence{1000};
  LinkOptions ours = options(0, kSilence);
  LinkOptions theirs = options(1, kSilence);
  ours.seal = {.secret = testing::secret_of("what the launchers know"), .job = "job"};
  theirs.seal = ours.seal;
  const StoreLink host(ours);
  const StoreLink other(theirs);
  const int64_t before = wait_for(other, phase_is(Phase::kRunning)).answers;
  const network::TcpStorePtr stranger = network::reach_tcp_store("127.0.0.1", socket->port(), testing::kPatience);
  wait_for(other, [&](const LinkState& state) {
    for (const char* const name : {"node/2/beat", "steps"})
      stranger->set(kLauncherKeys + std::string(name), std::vector<uint8_t>{7});
    return state.answers > before + 3 * kSilence / ours.monitor_interval;
  });
  EXPECT_EQ(host.state().decision->phase, Phase::kRunning);
  EXPECT_GT(host.state().rejected + other.state().rejected, 0);
}

TEST_F(StoreLinkTest, RefusesAStoreOfSomethingElse) {
  const StoreLink other(options(1, testing::kPatience, milliseconds(300)));  // no host decides here
  EXPECT_EQ(wait_for(other, is_broken).broken, "the store there does not belong to narrowcast-run");
}

}  // namespace
}  // namespace narrowcast::launcher
