#include "trainer/launcher/group/reach.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "trainer/base/address_list.h"
#include "trainer/base/files/file_descriptor.h"

namespace narrowcast::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// 0, or the reason.
int error_of_connecting(const files::FileDescriptor& socket, std::chrono::milliseconds timeout) {
  pollfd entry = {socket.get(), POLLOUT, 0};
  if (poll(&entry, 1, static_cast<int>(timeout.count())) != 1) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

int connect_once(const network::SocketAddress& address, std::chrono::milliseconds timeout) {
  const files::FileDescriptor own(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!own.is_open()) {
    return errno;
  }
  if (connect(own.get(), address.get(), address.length) == 0) {
    return 0;
  }
  return errno == EINPROGRESS ? error_of_connecting(own, timeout) : errno;
}

// How many there are from here to the end of the list.
int64_t addresses_from(const addrinfo* entry) {
  int64_t count = 0;
  for (; entry != nullptr; entry = entry->ai_next) {
    ++count;
  }
  return count;
}

}  // namespace

std::string try_to_reach(const std::string& host, int64_t port, std::chrono::milliseconds& left) {
  int error = 0;
  const network::AddressList found = network::find_addresses(host, error);
  if (found == nullptr) {
    return gai_strerror(error);
  }
  const auto deadline = Clock::now() + left;
  int reason = 0;
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    reason = connect_once(network::SocketAddress(*entry, port), left / addresses_from(entry));
    left =
        std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    if (reason == 0) {
      return "";
    }
  }
  return std::strerror(reason);
}

}  // namespace narrowcast::launcher
