// The addresses and ports at which processes listen, from the kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace narrowcast::testing {

// The numeric addresses, without ports, of every TCP socket on which this process waits for connections, sorted, e.g.
// {"127.0.0.1", "::"}; "::" is every interface.
std::vector<std::string> listening_addresses();

// The ports at which another process of this user listens.
std::vector<int64_t> listening_ports_of(pid_t process);

}  // namespace narrowcast::testing
