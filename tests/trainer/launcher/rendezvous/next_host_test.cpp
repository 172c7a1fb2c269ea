// Launchers of three nodes, of which one after another is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "tests/trainer/launcher/rendezvous/succession_fixture.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Kind = Directive::Kind;

bool is_over(const Directive& now) { return now.kind == Kind::kOver; }

TEST_P(SealedSuccessionTest, AnotherLauncherServesTheStore) {
  begin();
  const RankOfNode own = {.node = 3, .rank_on_node = 0};
  launchers.at(2)->announce_start(own);
  while (launchers.at(2)->announced_start(own) != 1) {
    testing::pause_between_looks();
  }
  const int64_t port = standbys.at(1)->socket.port();
  lose(0);
  const RankOfNode late = {.node = 3, .rank_on_node = 1};
  launchers.at(2)->announce_start(late);  // To a store that is gone.
  const Round first = until(1, has_changed(1)).round;
  const Round second = until(2, has_changed(1)).round;
  EXPECT_EQ(first.node_rank, 0);
  EXPECT_EQ(first.first_rank, 0);
  EXPECT_EQ(first.losses, 1);
  EXPECT_EQ(second.node_rank, 1);
  EXPECT_EQ(second.world_size, 2);
  EXPECT_EQ(second.master_addr, "127.0.0.1");
  EXPECT_EQ(second.master_port, port);
  EXPECT_EQ(second.change, "node 0 (a) was lost: the launcher that served it has ended or was killed");
  while (!launchers.at(2)->announced_start(late)) {
    testing::pause_between_looks();
  }
  EXPECT_EQ(launchers.at(2)->announced_start(late), 3) << "after its own start and the loss";
  launchers.at(1)->report({});
  launchers.at(2)->report({});
  EXPECT_EQ(until(1, is_over).end->exit_code(), 0);
  EXPECT_EQ(until(2, is_over).end->exit_code(), 0);
}

// It is in the first change: the others do not work without it first.
TEST_P(SealedSuccessionTest, ALauncherThatWaitsForAPlaceComesAlong) {
  begin();
  launchers[3] = std::make_unique<StoreRendezvous>(node(3));
  until(3, [](const Directive& now) { return now.note == "waiting: the job runs with 3 nodes"; });
  wait_for_a_decision();
  for (const int64_t number : {1, 2}) {
    wait_for_a_look(number + 1);
  }
  lose(0);
  for (const int64_t number : {3, 1, 2}) {
    const Round round = until(number, has_changed(1)).round;
    EXPECT_EQ(round.nodes, 3);
    EXPECT_EQ(round.node_rank, number - 1);
    EXPECT_EQ(round.master_port, standbys.at(1)->socket.port());
  }
}

// The launcher at the endpoint still leads to the one that took over first.
TEST_P(SealedSuccessionTest, TheEndpointLeadsToTheLastHost) {
  begin();
  lose(0);
  until(2, has_changed(1));
  comes_again();
  for (const int64_t number : {0, 1, 2}) {
    until(number, has_changed(2));
  }
  lose(1);
  until(0, has_changed(3));
  launchers[3] = std::make_unique<StoreRendezvous>(node(3));
  const Round round = until(3, has_changed(4)).round;
  EXPECT_EQ(round.nodes, 3);
  EXPECT_EQ(round.master_port, standbys.at(2)->socket.port());
}

// It only has the endpoint of the job that has moved.
TEST_P(SealedSuccessionTest, AnotherJobIsNotLedAway) {
  begin();
  lose(0);
  until(2, has_changed(1));
  comes_again("another");
  const Clock::time_point deadline = Clock::now() + testing::kPatience;
  while (!store->store()->check({launcher_key("moved/")}) && Clock::now() < deadline) {
    testing::pause_between_looks();
  }
  LinkOptions late = node(3);
  late.node.settings.rdzv_id = "another";
  late.seal.job = "another";
  launchers[3] = std::make_unique<StoreRendezvous>(late);
  until(3, [](const Directive& now) { return now.note == "waiting: 2 nodes have joined; waiting for up to 3"; });
  EXPECT_EQ(launchers.at(2)->directive().round.nodes, 2);
}

INSTANTIATE_TEST_SUITE_P(Secret, SealedSuccessionTest, ::testing::Bool());

// The user starts the lost host again in the same way. It serves a new store at the endpoint.
TEST_P(SealedSuccessionTest, ANewLauncherAtTheEndpointJoins) {
  begin();
  lose(0);
  until(2, has_changed(1));
  comes_again();
  const Round round = until(0, has_changed(2)).round;
  EXPECT_EQ(round.nodes, 3);
  EXPECT_EQ(round.node_rank, 2);
  EXPECT_EQ(round.master_port, standbys.at(1)->socket.port());
  launchers[3] = std::make_unique<StoreRendezvous>(node(3));  // Another one that comes to the endpoint.
  EXPECT_EQ(until(3, [](const Directive& now) { return !now.note.empty(); }).note,
            "waiting: the job runs with 3 nodes");
}

TEST_F(SuccessionTest, ALauncherThatWasLedToALostHostAsksAgain) {
  begin();
  lose(0);
  until(2, has_changed(1));
  socket = testing::loopback_socket();
  store = std::make_shared<HostedStore>("127.0.0.1", *socket);
  const std::string there = network::host_and_port("127.0.0.1", standbys.at(1)->socket.port());
  StoreMember endpoint(store->store());
  const std::string undecided = to_text(Decision());
  store->store()->set(std::string(kLauncherKeys) + "decision", {undecided.begin(), undecided.end()});
  endpoint.announce_move(network::host_and_port("127.0.0.1", 1));  // Nobody listens there.
  launchers[3] = std::make_unique<StoreRendezvous>(node(3));
  until(3, [](const Directive& now) { return now.note == "waiting for the store at 127.0.0.1:1"; });
  endpoint.announce_move(there);
  EXPECT_EQ(until(3, has_changed(2)).round.master_port, standbys.at(1)->socket.port());
}

// It would begin a second job while the next host still gathers the members of the first one.
TEST_P(SealedSuccessionTest, ALauncherAtTheEndpointWaitsUntilItIsLedOn) {
  begin();
  lose(0);
  until(2, has_changed(1));
  socket = testing::loopback_socket();
  store = std::make_shared<HostedStore>("127.0.0.1", *socket);
  LinkOptions again = node(0, /*is_first_start=*/false);
  again.rendezvous.last_call_timeout = testing::kPatience;  // Without a last call it may run a job of its own at once.
  launchers[0] = std::make_unique<StoreRendezvous>(again);
  StoreMember endpoint(store->store(), again.seal);
  while (!endpoint.has_host()) {
    testing::pause_between_looks();
  }
  const std::string lost = network::host_and_port("127.0.0.1", 1);  // Nobody listens there.
  endpoint.announce_move(lost);
  const auto is_led_astray = [](const Directive& now) { return now.note == "waiting for the store at 127.0.0.1:1"; };
  const auto has_joined_again = has_changed(2);
  until(0, [&](const Directive& now) { return is_led_astray(now) || has_joined_again(now); });
  if (endpoint.moved_to() != lost) GTEST_SKIP() << "the next host has seen the new store first";
  until(0, [end = Clock::now() + milliseconds(2500)](const Directive&) { return Clock::now() > end; });
  EXPECT_EQ(endpoint.moved_to(), lost);
  endpoint.announce_move(network::host_and_port("127.0.0.1", standbys.at(1)->socket.port()));
  EXPECT_EQ(until(0, has_changed(2)).round.master_port, standbys.at(1)->socket.port());
}

// The launcher of an earlier job, which has led them away, has ended.
TEST_P(SealedSuccessionTest, ALauncherAtTheEndpointServesAgainIfTheJobThatItWasLedToIsGone) {
  nodes = 2;
  LinkOptions first = node(0);
  first.rendezvous.last_call_timeout = testing::kPatience;
  first.rendezvous.heartbeat_timeout = milliseconds(100);
  launchers[0] = std::make_unique<StoreRendezvous>(first);
  StoreMember stranger(store->store(), first.seal);
  while (!stranger.has_host()) {
    testing::pause_between_looks();
  }
  const testing::SilentPort silent;
  stranger.announce_move(network::host_and_port("127.0.0.1", silent.port()));
  launchers[1] = std::make_unique<StoreRendezvous>(node(1));
  for (const int64_t number : {0, 1}) {
    EXPECT_EQ(until(number, [](const Directive& now) { return now.kind == Kind::kRun; }).round.nodes, 2);
  }
}

// Who comes then begins another job.
TEST_F(SuccessionTest, NobodyIsLedToAJobThatIsOver) {
  begin();
  lose(0);
  for (const int64_t left : {1, 2}) {
    until(left, has_changed(1));
    launchers.at(left)->report({});
  }
  for (const int64_t left : {1, 2}) {
    until(left, is_over);
  }
  comes_again();
  StoreMember endpoint(store->store());
  while (!endpoint.has_host()) {
    testing::pause_between_looks();
  }
  const Clock::time_point end = Clock::now() + milliseconds(2500);  // It looks each second.
  while (Clock::now() < end && endpoint.moved_to().empty()) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(endpoint.moved_to(), "");
}

TEST_F(SuccessionTest, TheNextHostMayBeLostToo) {
  nodes = 5;
  begin();
  lose(0);
  for (const int64_t left : {1, 2, 3, 4}) {
    EXPECT_EQ(until(left, has_changed(1)).round.nodes, 4);
  }
  lose(1);
  const int64_t port = standbys.at(2)->socket.port();
  for (const int64_t left : {2, 3, 4}) {
    const Round round = until(left, has_changed(2)).round;
    EXPECT_EQ(round.nodes, 3);
    EXPECT_EQ(round.master_port, port);
  }
}

TEST_F(SuccessionTest, TheNextHostMayBeLostAtOnce) {
  nodes = 5;
  begin();
  lose(1);
  lose(0);
  const Round round = until(4, has_changed(1)).round;
  EXPECT_EQ(round.nodes, 3);
  EXPECT_EQ(round.master_port, standbys.at(2)->socket.port());
}

TEST_F(SuccessionTest, AMinorityEnds) {
  nodes = 4;
  begin();
  lose(1);
  lose(0);
  const GroupEnd end = *until(2, is_over).end;
  EXPECT_EQ(end.exit_code(), program::kPeerFailed);
  EXPECT_THAT(end.text, HasSubstr("2 of 4 nodes are left"));
}

TEST_F(SuccessionTest, OfTwoNodesOnlyTheHostGoesOn) {
  nodes = 2;
  begin();
  lose(0);
  const GroupEnd end = *until(1, is_over).end;
  EXPECT_EQ(end.exit_code(), program::kPeerFailed);
  EXPECT_THAT(end.text, HasSubstr("the launcher that served it has ended or was killed"));
}

}  // namespace
}  // namespace narrowcast::launcher
