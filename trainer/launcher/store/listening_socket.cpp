#include "trainer/launcher/store/listening_socket.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "trainer/launcher/store/address_list.h"

namespace narrowcast::launcher {
namespace {

constexpr int kBacklog = 4096;

// Bound to the address; errno says why if it is none.
Descriptor bind_to(const SocketAddress& address) {
  Descriptor own(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(own.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // Or late packets would hold the port for minutes.
  return own && bind(own.get(), address.get(), address.length) == 0 ? std::move(own) : Descriptor();
}

int64_t port_of(const Descriptor& socket) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  TORCH_CHECK(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0,
              "getsockname: ", std::strerror(errno));
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

[[noreturn]] void refuse(const std::string& flag, int64_t port, int reason) {
  const std::string message = c10::str(flag, "=", port, ": cannot be used: ", std::strerror(reason));
  if (reason == EADDRINUSE) {
    throw PortInUseError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
  }
  TORCH_CHECK_VALUE(false, message);
}

}  // namespace

ListeningSocket::ListeningSocket(const std::string& address, int64_t port, const FlagNames& flags) {
  TORCH_CHECK_VALUE(port >= 0 && port <= 65535, flags.port, "=", port, ": must be from 0 to 65535");
  int error = 0;
  const AddressList found = find_addresses(address, error);
  TORCH_CHECK_VALUE(found != nullptr, flags.address, "=", address, ": ", gai_strerror(error));
  int reason = EADDRNOTAVAIL;
  for (const addrinfo* entry = found.get(); entry != nullptr && !socket_; entry = entry->ai_next) {
    const SocketAddress candidate(*entry, port);
    TORCH_CHECK_VALUE(!candidate.means_all(), flags.address, "=", address,
                      ": means every address of this machine; name the one that the other nodes use");
    socket_ = bind_to(candidate);
    reason = socket_ || (errno == EADDRNOTAVAIL && reason != EADDRNOTAVAIL) ? reason : errno;
  }
  TORCH_CHECK_VALUE(socket_ || reason != EADDRNOTAVAIL, flags.address, "=", address,
                    ": not an address of this machine, where the job's store is served");
  if (socket_) {
    reason = listen(socket_.get(), kBacklog) == 0 ? 0 : errno;
  }
  if (reason != 0) {
    refuse(flags.port, port, reason);
  }
  port_ = port_of(socket_);
}

int ListeningSocket::duplicate() const {
  const int copy = fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0);
  TORCH_CHECK(copy >= 0, "fcntl: ", std::strerror(errno));
  return copy;
}

bool is_own_address(const std::string& address) {
  int error = 0;
  const AddressList found = find_addresses(address, error);
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    if (bind_to(SocketAddress(*entry, 0))) {
      return true;
    }
  }
  return false;
}

}  // namespace narrowcast::launcher
