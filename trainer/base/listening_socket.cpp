#include "trainer/base/listening_socket.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace narrowcast::network {
namespace {

constexpr int kWaitingConnections = 4096;

SocketAddress own_address(const files::FileDescriptor& socket) {
  SocketAddress own;
  own.length = sizeof(own.bytes);
  TORCH_CHECK(getsockname(socket.get(), own.get(), &own.length) == 0, "getsockname: ", std::strerror(errno));
  return own;
}

}  // namespace

std::optional<ListeningSocket> ListeningSocket::listen_at(const SocketAddress& address, int& error) {
  files::FileDescriptor own(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const bool listens = own.is_open() &&
                       // A port whose last connections are still closing can be taken again.
                       setsockopt(own.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                       bind(own.get(), address.get(), address.length) == 0 &&
                       listen(own.get(), kWaitingConnections) == 0;
  error = listens ? 0 : errno;
  if (!listens) {
    return std::nullopt;
  }
  const int64_t port = own_address(own).port();
  return ListeningSocket(std::move(own), port);
}

std::optional<ListeningSocket> ListeningSocket::listen_at(const AddressList& addresses, int64_t port, int& error) {
  int reason = EADDRNOTAVAIL;
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    if (auto listening = listen_at({*entry, port}, error)) {
      return listening;
    }
    reason = error == EADDRNOTAVAIL ? reason : error;
  }
  error = reason;
  return std::nullopt;
}

int ListeningSocket::duplicate() const {
  const int copy = fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0);
  TORCH_CHECK(copy >= 0, "fcntl: ", std::strerror(errno));
  return copy;
}

}  // namespace narrowcast::network
