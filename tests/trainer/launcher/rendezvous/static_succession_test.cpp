// Launchers of three nodes with fixed ranks, of which one after another is lost.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "tests/trainer/launcher/rendezvous/succession_fixture.h"

namespace narrowcast::launcher {
namespace {

using Kind = Directive::Kind;

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

}  // namespace
}  // namespace narrowcast::launcher
