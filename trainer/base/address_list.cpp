#include "trainer/base/address_list.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace narrowcast::network {

AddressList find_addresses(const std::string& host, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  return {error == 0 ? found : nullptr, [](addrinfo* list) {
            if (list != nullptr) {
              freeaddrinfo(list);
            }
          }};
}

SocketAddress::SocketAddress(const addrinfo& address, int64_t port) : length(address.ai_addrlen) {
  std::memcpy(&bytes, address.ai_addr, std::min<size_t>(length, sizeof(bytes)));
  const auto number = htons(static_cast<uint16_t>(port));
  if (bytes.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(bytes).sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in&>(bytes).sin_port = number;
  }
}

int64_t SocketAddress::port() const {
  return ntohs(bytes.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bytes).sin_port);
}

bool SocketAddress::means_all() const {
  if (bytes.ss_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(bytes).sin6_addr);
  }
  return reinterpret_cast<const sockaddr_in&>(bytes).sin_addr.s_addr == htonl(INADDR_ANY);
}

bool means_all(const AddressList& addresses) {
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    if (SocketAddress(*entry, 0).means_all()) {
      return true;
    }
  }
  return false;
}

}  // namespace narrowcast::network
