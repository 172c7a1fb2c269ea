// A TCP socket that waits for connections at one address of this machine, and at no other.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "trainer/base/address_list.h"
#include "trainer/base/files/file_descriptor.h"

namespace narrowcast::network {

class ListeningSocket {
 public:
  // Port 0 is any free one. Where it cannot listen the result is empty, and `error`, a value of errno, says why: most
  // often EADDRINUSE, somebody listens there already, or EADDRNOTAVAIL, the address is another machine's.
  static std::optional<ListeningSocket> listen_at(const SocketAddress& address, int& error);

  // The same at the first of a host's `addresses` where it can listen. `error` is EADDRNOTAVAIL only if all of them are
  // another machine's.
  static std::optional<ListeningSocket> listen_at(const AddressList& addresses, int64_t port, int& error);

  int64_t port() const { return port_; }

  // Another descriptor of the same socket, which the caller owns; closing it leaves this one listening.
  // Throws c10::Error.
  int duplicate() const;

 private:
  ListeningSocket(files::FileDescriptor socket, int64_t port) : socket_(std::move(socket)), port_(port) {}

  files::FileDescriptor socket_;
  int64_t port_;
};

}  // namespace narrowcast::network
