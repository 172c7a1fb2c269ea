// Launchers of three nodes, of which one after another is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/job_secret.h"
#include "tests/trainer/launcher/rendezvous/store_fixture.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/rendezvous/store_rendezvous.h"
#include "trainer/launcher/store/store_member.h"
#include "trainer/launcher/store/store_protocol.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Kind = Directive::Kind;

class SuccessionTest : public StoreFixture {
 protected:
  // The first node takes over from nobody before it is started again.
  LinkOptions node(int64_t number, bool is_first_start = true) {
    LinkOptions wanted = options(number);
    wanted.node.host = std::string(1, static_cast<char>('a' + number));
    wanted.node.settings = {
        .backend = backend, .min_nodes = 1, .max_nodes = nodes, .max_restarts = 1, .in_place = true};
    wanted.rendezvous.last_call_timeout = milliseconds(0);
    wanted.seal.secret = secret;
    if (number > 0 || !is_first_start) {
      standbys[number] = std::make_shared<const Standby>(Standby{"127.0.0.1", testing::loopback_socket()});
      wanted.standby = standbys[number];
      wanted.node.standby = network::host_and_port("127.0.0.1", wanted.standby->socket.port());
    }
    return wanted;
  }

  // Whether the node runs a round whose members have changed that often since all had joined.
  auto has_changed(int64_t changes) const {
    return [all = nodes - 1 + changes](const Directive& now) {
      return now.kind == Kind::kRun && now.round.changes == all;
    };
  }

  // A round of all nodes, whose ranks can form a new group. The nodes after the first joined it in place, so they know
  // that members may change.
  void begin() {
    for (int64_t number = 0; number < nodes; ++number) {
      launchers[number] = std::make_unique<StoreRendezvous>(node(number));
      const auto has_joined = [number](const Directive& now) {
        return now.kind == Kind::kRun && now.round.nodes == number + 1;
      };
      const Round round = until(number, has_joined).round;
      if (number == 0) {
        store->store()->set(rendezvous::job_prefix(round.run_id) + "/" + rendezvous::kRegroups,
                            std::vector<uint8_t>{'1'});
        wait_for_a_decision();
      }
    }
    for (const auto& [number, launcher] : launchers) {
      EXPECT_EQ(until(number, has_changed(0)).round.nodes, nodes);
    }
  }

  // Waits until the host has decided with all that is in its store now.
  void wait_for_a_decision() {
    const std::string sign = std::string(kLauncherKeys) + "steps";
    for (int decisions = 0; decisions < 2; ++decisions) {  // The first one may have begun before.
      const std::string before = store->store()->get_to_str(sign);
      while (store->store()->get_to_str(sign) == before) {
        std::this_thread::yield();
      }
    }
  }

  // Looks at the directives of all launchers until that one's is as wanted.
  template <class Wanted>
  Directive until(int64_t number, const Wanted& wanted) {
    const Clock::time_point deadline = Clock::now() + testing::kPatience;
    for (;;) {
      Directive found;
      for (const auto& [other, launcher] : launchers) {
        const Directive directive = launcher->directive();
        found = other == number ? directive : found;
      }
      if (wanted(found) || Clock::now() > deadline) {
        EXPECT_TRUE(wanted(found)) << found.note << (found.end ? found.end->text : "");
        return found;
      }
      std::this_thread::yield();
    }
  }

  void lose(int64_t number) {
    launchers.erase(number);
    standbys.erase(number);
    if (number == 0) {
      store.reset();
      socket.reset();
    }
  }

  // The first launcher is started again, at the same endpoint.
  void comes_again(const std::string& job = "") {
    int error = 0;
    socket = network::ListeningSocket::listen_at(network::find_addresses("127.0.0.1", error), endpoint_port, error);
    store = std::make_shared<HostedStore>("127.0.0.1", *socket);
    LinkOptions again = node(0, /*is_first_start=*/false);
    again.rendezvous.last_call_timeout = testing::kPatience;
    again.node.settings.rdzv_id = job;
    again.seal.job = job;
    launchers[0] = std::make_unique<StoreRendezvous>(again);
  }

  const int64_t endpoint_port = socket->port();
  std::string backend = kElasticBackend;
  int64_t nodes = 3;
  std::optional<program::JobSecret> secret;
  std::map<int64_t, std::unique_ptr<StoreRendezvous>> launchers;
  std::map<int64_t, std::shared_ptr<const Standby>> standbys;
};

bool is_over(const Directive& now) { return now.kind == Kind::kOver; }

// With a job secret, and without one.
class SealedSuccessionTest : public SuccessionTest, public ::testing::WithParamInterface<bool> {
 protected:
  SealedSuccessionTest() {
    if (GetParam()) {
      secret = testing::secret_of("0123456789abcdef0123456789abcdef");
    }
  }
};

TEST_P(SealedSuccessionTest, AnotherLauncherServesTheStore) {
  begin();
  const RankOfNode own = {.node = 3, .rank_on_node = 0};
  launchers.at(2)->announce_start(own);
  while (launchers.at(2)->announced_start(own) != 1) {
    std::this_thread::yield();
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
    std::this_thread::yield();
  }
  EXPECT_EQ(launchers.at(2)->announced_start(late), 3) << "after its own start and the loss";
  launchers.at(1)->report({});
  launchers.at(2)->report({});
  EXPECT_EQ(until(1, is_over).end->exit_code(), 0);
  EXPECT_EQ(until(2, is_over).end->exit_code(), 0);
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
    std::this_thread::yield();
  }
  LinkOptions late = node(3);
  late.node.settings.rdzv_id = "another";
  late.seal.job = "another";
  launchers[3] = std::make_unique<StoreRendezvous>(late);
  until(3, [](const Directive& now) { return now.note == "waiting: 2 nodes have joined; waiting for up to 3"; });
  EXPECT_EQ(launchers.at(2)->directive().round.nodes, 2);
}

// Nodes of fixed ranks, which all know that members may change.
class StaticSuccessionTest : public SealedSuccessionTest {
 protected:
  StaticSuccessionTest() {
    backend = kStaticBackend;
    for (int64_t number = 0; number < nodes; ++number) {
      launchers[number] = std::make_unique<StoreRendezvous>(node(number));
    }
    const Round round = until(0, runs).round;
    store->store()->set(rendezvous::job_prefix(round.run_id) + "/" + rendezvous::kRegroups, std::vector<uint8_t>{'1'});
    wait_for_a_decision();
    for (int64_t ticket = 1; ticket <= nodes; ++ticket) {
      wait_for_a_look(ticket);
    }
  }

  // Waits until that launcher has read a decision of now: it reads one after each heartbeat.
  void wait_for_a_look(int64_t ticket) {
    const std::string beat = node_key(ticket, "beat");
    for (int looks = 0; looks < 3; ++looks) {
      const std::string before = store->store()->get_to_str(beat);
      while (store->store()->get_to_str(beat) == before) {
        std::this_thread::yield();
      }
    }
  }

  static bool runs(const Directive& now) { return now.kind == Kind::kRun; }
  static auto has_lost(int64_t losses) {
    return [losses](const Directive& now) { return runs(now) && now.round.losses == losses; };
  }
  static auto has_got(int64_t changes) {
    return [changes](const Directive& now) { return runs(now) && now.round.changes == changes; };
  }
};

TEST_P(StaticSuccessionTest, TheFirstNodeComesBackToItsPlace) {
  lose(0);
  for (const int64_t left : {1, 2}) {
    const Round waiting = until(left, has_lost(1)).round;
    EXPECT_EQ(waiting.changes, 0);
    EXPECT_EQ(waiting.nodes, 3) << "it is waited for";
    EXPECT_EQ(waiting.node_rank, left);
    EXPECT_EQ(waiting.master_port, standbys.at(1)->socket.port());
  }
  comes_again();
  for (const int64_t number : {0, 1, 2}) {
    const Round round = until(number, has_got(1)).round;
    EXPECT_EQ(round.restart_count, 0);
    EXPECT_EQ(round.nodes, 3);
    EXPECT_EQ(round.node_rank, number);
    EXPECT_EQ(round.first_rank, number);
    EXPECT_EQ(round.master_port, standbys.at(1)->socket.port());
  }
}

// The host that is lost last was itself started with the printed address of a store.
TEST_P(StaticSuccessionTest, TheEndpointLeadsToAHostThatWasNeverToldOfIt) {
  lose(0);
  until(2, has_lost(1));
  comes_again();
  for (const int64_t number : {0, 1, 2}) {
    until(number, has_got(1));
  }
  lose(1);
  until(2, has_lost(2));
  LinkOptions printed = node(1);
  printed.port = standbys.at(0)->socket.port();
  launchers[1] = std::make_unique<StoreRendezvous>(printed);
  for (const int64_t number : {0, 1, 2}) {
    until(number, has_got(2));
  }
  lose(0);
  until(2, has_lost(3));
  comes_again();
  const Round round = until(0, has_got(3)).round;
  EXPECT_EQ(round.master_port, standbys.at(1)->socket.port());
}

// Also if it is killed after the host.
TEST_P(StaticSuccessionTest, TheNewHostMayBeLostToo) {
  lose(0);
  until(2, has_lost(1));
  comes_again();
  for (const int64_t number : {0, 1, 2}) {
    until(number, has_got(1));
  }
  lose(1);
  until(2, has_lost(2));
  launchers[1] = std::make_unique<StoreRendezvous>(node(1));
  for (const int64_t number : {0, 1, 2}) {
    const Round round = until(number, has_got(2)).round;
    EXPECT_EQ(round.node_rank, number);
    EXPECT_EQ(round.master_port, standbys.at(0)->socket.port()) << "the first node that is left";
  }
}

INSTANTIATE_TEST_SUITE_P(Secret, StaticSuccessionTest, ::testing::Bool());
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
