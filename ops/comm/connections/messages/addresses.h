// IP addresses of sockets.
#pragma once

#include <sys/socket.h>

#include <string>

namespace narrowcast::connections {

struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t length = 0;

  // c10::ValueError if `ip` is not an IPv4 or IPv6 address. The port is 0.
  static SocketAddress of_ip(const std::string& ip);

  // The address of the socket's own end.
  static SocketAddress of_socket(int socket);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }

  // "[10.0.0.1]:4242", as in Gloo's errors.
  std::string text() const;
};

// The text of the other end's address.
std::string peer_address(int socket);

}  // namespace narrowcast::connections
