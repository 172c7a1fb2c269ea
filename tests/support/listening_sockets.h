// What this process really listens at, from the kernel.
#pragma once

#include <string>
#include <vector>

namespace narrowcast::testing {

// The addresses, as numbers without ports, of every TCP socket on which this process waits for connections, sorted,
// e.g. {"127.0.0.1", "::"}; the latter is every interface.
std::vector<std::string> listening_addresses();

}  // namespace narrowcast::testing
