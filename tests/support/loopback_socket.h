// Ports of this machine for tests.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include "trainer/base/network/tcp_store.h"

namespace narrowcast::testing {

// Listens at the numeric address `address` and a free port.
inline network::ListeningSocket loopback_socket(const std::string& address = "127.0.0.1") {
  int error = 0;
  return network::ListeningSocket::listen_at({*network::find_addresses(address, error), 0}, error).value();
}

// A port of 127.0.0.1 at which nobody listens. Neither a test nor the kernel hands it out again while this process
// lives. A program that is given this port may therefore listen there later, however many tests run at the same time.
// Throws std::system_error if no port is free.
int64_t free_port();

// A port of 127.0.0.1 that is reserved for this object and at which nobody listens: connections are refused.
class SilentPort {
 public:
  SilentPort() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (descriptor_ < 0 || ::bind(descriptor_, generic, size) != 0 || ::getsockname(descriptor_, generic, &size) != 0) {
      throw std::system_error(errno, std::generic_category(), "a port of 127.0.0.1");
    }
    port_ = ntohs(address.sin_port);
  }
  ~SilentPort() { ::close(descriptor_); }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;

  int64_t port() const { return port_; }

 private:
  const int descriptor_;
  int64_t port_ = 0;
};

}  // namespace narrowcast::testing
