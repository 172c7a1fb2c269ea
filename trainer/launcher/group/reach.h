// Whether something listens at an address of the network.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace narrowcast::launcher {

// Tries to connect once to each address of `host`, for at most `left` in all, shared among them, from which it takes
// the time that it needed. To look the name up takes as long as the machine's resolver does. Returns why it cannot,
// e.g. "Connection refused"; empty if it can.
std::string try_to_reach(const std::string& host, int64_t port, std::chrono::milliseconds& left);

}  // namespace narrowcast::launcher
