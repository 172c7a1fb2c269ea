// Launchers of a job whose host may be lost.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/job_secret.h"
#include "tests/support/patience.h"
#include "tests/trainer/launcher/rendezvous/store_fixture.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/rendezvous/store_rendezvous.h"
#include "trainer/launcher/store/store_protocol.h"

namespace narrowcast::launcher {

class SuccessionTest : public StoreFixture {
 protected:
  // The first node takes over from nobody before it is started again.
  LinkOptions node(int64_t number, bool is_first_start = true) {
    LinkOptions wanted = options(number);
    wanted.node.host = std::string(1, static_cast<char>('a' + number));
    wanted.node.settings = {
        .backend = backend, .min_nodes = 1, .max_nodes = nodes, .max_restarts = 1, .in_place = true};
    wanted.rendezvous.last_call_timeout = std::chrono::milliseconds(0);
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
      return now.kind == Directive::Kind::kRun && now.round.changes == all;
    };
  }

  // A round of all nodes, whose ranks can form a new group. The nodes after the first joined it in place, so they know
  // that members may change.
  void begin() {
    for (int64_t number = 0; number < nodes; ++number) {
      launchers[number] = std::make_unique<StoreRendezvous>(node(number));
      const auto has_joined = [number](const Directive& now) {
        return now.kind == Directive::Kind::kRun && now.round.nodes == number + 1;
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
        testing::pause_between_looks();
      }
    }
  }

  // Waits until that launcher has read a decision of now: it reads one after each heartbeat.
  void wait_for_a_look(int64_t ticket) {
    const std::string beat = node_key(ticket, "beat");
    for (int looks = 0; looks < 3; ++looks) {
      const std::string before = store->store()->get_to_str(beat);
      while (store->store()->get_to_str(beat) == before) {
        testing::pause_between_looks();
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
      testing::pause_between_looks();
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

// With a job secret, and without one.
class SealedSuccessionTest : public SuccessionTest, public ::testing::WithParamInterface<bool> {
 protected:
  SealedSuccessionTest() {
    if (GetParam()) {
      secret = testing::secret_of("0123456789abcdef0123456789abcdef");
    }
  }
};

}  // namespace narrowcast::launcher
