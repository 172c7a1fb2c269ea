#include "tests/support/loopback_socket.h"

#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <system_error>

namespace narrowcast::testing {
namespace {

struct Ports {
  int64_t first;
  int64_t last;
};

// Ports below the range that the kernel gives to sockets that do not request one: a connection of another process could
// otherwise take such a port before the test listens there. If that range covers nearly all ports, any unprivileged
// port.
Ports ports_to_choose_from() {
  constexpr Ports kUnprivileged = {.first = 10'000, .last = 65'535};
  constexpr int64_t kEnough = 1'000;
  int64_t kernels_first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> kernels_first;
  return kernels_first < kUnprivileged.first + kEnough ? kUnprivileged
                                                       : Ports{.first = kUnprivileged.first, .last = kernels_first - 1};
}

// Reserves the port among the tests that run at the same time, with the name of an abstract socket. Such a name, like a
// port, belongs to the network namespace. It is free again once the process and its forked children have ended, in
// whatever way.
bool reserve(int64_t port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "narrowcast-test-port-" + std::to_string(port);
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "a socket that reserves a port");
  if (::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), size) == 0) return true;  // Stays open.
  ::close(descriptor);
  return false;
}

bool can_listen_at(int64_t port) {
  int error = 0;
  const network::AddressList loopback = network::find_addresses("127.0.0.1", error);
  return network::ListeningSocket::listen_at({*loopback, port}, error).has_value();
}

}  // namespace

int64_t free_port() {
  constexpr int kTries = 1'000;
  const Ports ports = ports_to_choose_from();
  std::random_device entropy;  // Not gtest's seed, which is the same in tests that run at once.
  std::uniform_int_distribution<int64_t> any(ports.first, ports.last);
  for (int i = 0; i < kTries; ++i) {
    const int64_t port = any(entropy);
    if (reserve(port) && can_listen_at(port)) return port;
  }
  throw std::system_error(EADDRINUSE, std::generic_category(), "a free port of 127.0.0.1");
}

}  // namespace narrowcast::testing
