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
  TORCH_CHECK_VALUE(!network::means_all(found), flags.address, "=", address,
                    ": means every address of this machine; name the one that the other nodes use");
  if (auto socket = network::ListeningSocket::listen_at(found, port, error)) {
    return *std::move(socket);
  }
  TORCH_CHECK_VALUE(error != EADDRNOTAVAIL, flags.address, "=", address,
                    ": not an address of this machine, where the job's store is served");
  refuse(flags.port, port, error);
}

}  // namespace narrowcast::launcher
