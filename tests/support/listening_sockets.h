// What processes really listen at, from the kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace narrowcast::testing {

// The addresses, as numbers without ports, of every TCP socket on which this process waits for connections, sorted,
// e.g. {"127.0.0.1", "::"}; the latter is every interface.
std::vector<std::string> listening_addresses();

// The ports of those of another process of this user.
std::vector<int64_t> listening_ports_of(pid_t process);

}  // namespace narrowcast::testing
