// What a host name or number means to the network.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>

namespace narrowcast::launcher {

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// The TCP addresses of `host`; `error`, a code for gai_strerror, is set if there are none.
AddressList find_addresses(const std::string& host, int& error);

// The same address with another port, as bind and connect take it.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  SocketAddress(const addrinfo& address, int64_t port);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  // 0.0.0.0 or ::
  bool means_all() const;
};

}  // namespace narrowcast::launcher
