#include "trainer/process_group/rendezvous/listening_socket.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace narrowcast::rendezvous {
namespace {

constexpr int kWaitingConnections = 2048;

struct Endpoint {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  sockaddr* address() { return reinterpret_cast<sockaddr*>(&bytes); }
};

uint16_t port_in_network_order(int64_t port) { return htons(static_cast<uint16_t>(port)); }

Endpoint make_endpoint(const std::string& address, int64_t port) {
  Endpoint endpoint;
  auto& v4 = reinterpret_cast<sockaddr_in&>(endpoint.bytes);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(endpoint.bytes);
  if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = port_in_network_order(port);
    endpoint.length = sizeof(v4);
  } else if (inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = port_in_network_order(port);
    endpoint.length = sizeof(v6);
  }
  return endpoint;
}

std::string reason(int error) {
  return error == EADDRNOTAVAIL ? "it is no address of this machine" : std::strerror(error);
}

}  // namespace

ListeningSocket::ListeningSocket(const std::string& address, int64_t port) : descriptor_(-1) {
  Endpoint endpoint = make_endpoint(address, port);
  TORCH_CHECK_WITH(DistNetworkError, endpoint.length != 0, address, " is no internet address");
  descriptor_ = socket(endpoint.address()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  const bool listens = descriptor_ >= 0 &&
                       // A port whose last connections are still closing can be taken again.
                       setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                       bind(descriptor_, endpoint.address(), endpoint.length) == 0 &&
                       listen(descriptor_, kWaitingConnections) == 0;
  if (!listens) {
    const int error = errno;
    close(release());
    TORCH_CHECK_WITH(DistNetworkError, false, "cannot listen at ", address, " port ", port, ": ", reason(error));
  }
}

ListeningSocket::~ListeningSocket() {
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
}

int64_t ListeningSocket::port() const {
  Endpoint own;
  own.length = sizeof(own.bytes);
  getsockname(descriptor_, own.address(), &own.length);
  const bool v6 = own.bytes.ss_family == AF_INET6;
  return ntohs(v6 ? reinterpret_cast<sockaddr_in6&>(own.bytes).sin6_port
                  : reinterpret_cast<sockaddr_in&>(own.bytes).sin_port);
}

int ListeningSocket::release() { return std::exchange(descriptor_, -1); }

}  // namespace narrowcast::rendezvous
