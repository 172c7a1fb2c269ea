// A TCP socket that listens on one address of this machine, and on no other.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "trainer/launcher/posix/descriptor.h"

namespace narrowcast::launcher {

// Somebody listens there already.
class PortInUseError : public c10::ValueError {
  using ValueError::ValueError;
};

class ListeningSocket {
 public:
  // Listens at `address`, a name or a number, and `port`; 0 is any free one. Throws
  // c10::ValueError naming address or port where the address is another machine's or
  // means all of this one's, or the port cannot be used, PortInUseError if that is why;
  // `flags` says how users gave them.
  struct FlagNames {
    std::string address = "--master_addr";
    std::string port = "--master_port";
  };
  ListeningSocket(const std::string& address, int64_t port, const FlagNames& flags);

  int64_t port() const { return port_; }

  // Another descriptor of the same socket, which the caller owns; closing it leaves
  // this one listening.
  int duplicate() const;

 private:
  Descriptor socket_;
  int64_t port_ = 0;
};

// Whether `address`, a name or a number, belongs to this machine. False also for a name that means nothing.
bool is_own_address(const std::string& address);

}  // namespace narrowcast::launcher
