#include "ops/comm/connections/messages/addresses.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <netinet/in.h>

#include <array>

namespace narrowcast::connections {

SocketAddress SocketAddress::of_ip(const std::string& ip) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.bytes);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.bytes);
  if (::inet_pton(AF_INET, ip.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    address.length = sizeof(v4);
  } else {
    TORCH_CHECK_VALUE(::inet_pton(AF_INET6, ip.c_str(), &v6.sin6_addr) == 1, "'", ip, "' is not an IP address");
    v6.sin6_family = AF_INET6;
    address.length = sizeof(v6);
  }
  return address;
}

SocketAddress SocketAddress::of_socket(int socket) {
  SocketAddress address;
  address.length = sizeof(address.bytes);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.bytes), &address.length) != 0) return {};
  return address;
}

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> ip{};
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(bytes);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(bytes);
  if (bytes.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &v4.sin_addr, ip.data(), ip.size());
    return c10::str("[", ip.data(), "]:", ntohs(v4.sin_port));
  }
  if (bytes.ss_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &v6.sin6_addr, ip.data(), ip.size());
    return c10::str("[", ip.data(), "]:", ntohs(v6.sin6_port));
  }
  return "[none]";
}

std::string peer_address(int socket) {
  SocketAddress address;
  address.length = sizeof(address.bytes);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address.bytes), &address.length) != 0) return "[none]";
  return address.text();
}

}  // namespace narrowcast::connections
