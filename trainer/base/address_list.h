// What a host name or number means to the network.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <string>

namespace narrowcast::network {

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// The TCP addresses of `host`; `error`, a code for gai_strerror, is set if there are none.
AddressList find_addresses(const std::string& host, int& error);

// One address with a port, as bind and connect take it.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  SocketAddress() = default;
  // The same address with another port.
  SocketAddress(const addrinfo& address, int64_t port);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  int64_t port() const;
  // 0.0.0.0 or ::
  bool means_all() const;
};

// Whether one of `addresses` is 0.0.0.0 or ::
bool means_all(const AddressList& addresses);

}  // namespace narrowcast::network
