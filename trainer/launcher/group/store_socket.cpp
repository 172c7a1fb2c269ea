#include "trainer/launcher/group/store_socket.h"

#include <cerrno>
#include <cstring>
#include <optional>

namespace narrowcast::launcher {
namespace {

[[noreturn]] void refuse(const std::string& flag, int64_t port, int reason) {
  const std::string message = c10::str(flag, "=", port, ": cannot be used: ", std::strerror(reason));
  if (reason == EADDRINUSE) {
    throw PortInUseError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
  }
  TORCH_CHECK_VALUE(false, message);
}

}  // namespace

network::ListeningSocket open_store_socket(const std::string& address, int64_t port, const EndpointFlags& flags) {
  TORCH_CHECK_VALUE(port >= 0 && port <= 65535, flags.port, "=", port, ": must be from 0 to 65535");
  int error = 0;
  const network::AddressList found = network::find_addresses(address, error);
  TORCH_CHECK_VALUE(found != nullptr, flags.address, "=", address, ": ", gai_strerror(error));
  int reason = EADDRNOTAVAIL;
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    const network::SocketAddress candidate(*entry, port);
    TORCH_CHECK_VALUE(!candidate.means_all(), flags.address, "=", address,
                      ": means every address of this machine; name the one that the other nodes use");
    if (auto socket = network::ListeningSocket::listen_at(candidate, error)) {
      return *std::move(socket);
    }
    reason = error == EADDRNOTAVAIL ? reason : error;
  }
  TORCH_CHECK_VALUE(reason != EADDRNOTAVAIL, flags.address, "=", address,
                    ": not an address of this machine, where the job's store is served");
  refuse(flags.port, port, reason);
}

bool is_own_address(const std::string& address) {
  int error = 0;
  const network::AddressList found = network::find_addresses(address, error);
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    if (network::ListeningSocket::listen_at({*entry, 0}, error)) {
      return true;
    }
  }
  return false;
}

}  // namespace narrowcast::launcher
