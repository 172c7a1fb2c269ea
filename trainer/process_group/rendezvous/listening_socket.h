// A TCP socket that waits for connections at one address only.
#pragma once

#include <cstdint>
#include <string>

#include "ops/export.h"

namespace narrowcast::rendezvous {

class NARROWCAST_EXPORT ListeningSocket {
 public:
  // Binds to `address`, an IPv4 or IPv6 address as a number, and `port`, 0 for any free one. Throws
  // c10::DistNetworkError saying why it cannot: most often the port is in use or the address is another machine's.
  ListeningSocket(const std::string& address, int64_t port);
  ~ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  int64_t port() const;

  // Gives the descriptor away: who calls this closes it.
  int release();

 private:
  int descriptor_;
};

}  // namespace narrowcast::rendezvous
