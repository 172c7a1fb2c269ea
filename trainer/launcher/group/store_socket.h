// The socket at which a launcher serves the job's store.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "trainer/base/listening_socket.h"

namespace narrowcast::launcher {

// Somebody listens there already.
class PortInUseError : public c10::ValueError {
  using ValueError::ValueError;
};

// How users gave an address and a port.
struct EndpointFlags {
  std::string address = "--master_addr";
  std::string port = "--master_port";
};

// Listens at `address`, a name or a number, and `port`; 0 is any free one. Throws c10::ValueError naming the flag of
// address or port where the address is another machine's or means all of this one's, or the port cannot be used,
// PortInUseError if that is why.
network::ListeningSocket open_store_socket(const std::string& address, int64_t port, const EndpointFlags& flags);

}  // namespace narrowcast::launcher
