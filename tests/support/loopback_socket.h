// Ports of this machine for tests that need one.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/base/tcp_store.h"

namespace narrowcast::testing {

// Listens at `address`, a number, and a free port.
inline network::ListeningSocket loopback_socket(const std::string& address = "127.0.0.1") {
  int error = 0;
  return network::ListeningSocket::listen_at({*network::find_addresses(address, error), 0}, error).value();
}

// A port of 127.0.0.1 at which nobody listens just now.
inline int64_t free_port() { return loopback_socket().port(); }

}  // namespace narrowcast::testing
