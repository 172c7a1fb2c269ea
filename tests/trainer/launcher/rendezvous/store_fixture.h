// Launchers of one job in this process, with a real store.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>

#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "trainer/launcher/rendezvous/store_link.h"

namespace narrowcast::launcher {

class StoreFixture : public ::testing::Test {
 protected:
  // Returns the options of one of two fixed nodes; the first serves the store. The other node is lost after `silence`,
  // the store after `read_timeout`. Both are short only in tests of these timeouts.
  LinkOptions options(int64_t node_rank, std::chrono::milliseconds silence = testing::kPatience,
                      std::chrono::milliseconds read_timeout = testing::kPatience) {
    LinkOptions wanted;
    wanted.host = "127.0.0.1";
    wanted.port = socket->port();
    wanted.node = {.host = "h",
                   .pid = 7 + node_rank,
                   .nproc = 1,
                   .node_rank = node_rank,
                   .settings = {.backend = "static", .min_nodes = 2, .max_nodes = 2}};
    wanted.rendezvous.keep_alive_interval = std::chrono::milliseconds(20);
    wanted.rendezvous.keep_alive_max_attempt = silence / wanted.rendezvous.keep_alive_interval;
    wanted.rendezvous.heartbeat_timeout = silence;
    wanted.rendezvous.read_timeout = read_timeout;
    wanted.monitor_interval = std::chrono::milliseconds(5);
    wanted.hosted = node_rank == 0 ? store : nullptr;
    wanted.run_id = "made-up";
    return wanted;
  }

  std::optional<network::ListeningSocket> socket = testing::loopback_socket();
  std::shared_ptr<HostedStore> store = std::make_shared<HostedStore>("127.0.0.1", *socket);
};

}  // namespace narrowcast::launcher
