// Whether something listens at an address of the network.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace narrowcast::launcher {

// Tries to connect once, for at most `timeout` for each address of `host`. Returns why it cannot,
// e.g. "Connection refused"; empty if it can.
std::string try_to_reach(const std::string& host, int64_t port, std::chrono::milliseconds timeout);

}  // namespace narrowcast::launcher
