// How many nodes a job has, where they meet, and how long they wait for each other, as users write it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace narrowcast::launcher {

// The longest that a flag or an entry of --rdzv_conf may tell the launcher to wait: a day.
inline constexpr double kLongestSeconds = 86400;

// --nnodes: the least and the most nodes that a round may have.
struct NodeCount {
  int64_t least = 1;
  int64_t most = 1;

  bool several() const { return most > 1; }
};

// "N" or "MIN:MAX". Throws c10::ValueError for anything else.
NodeCount parse_nnodes(const std::string& text);

// --rdzv_endpoint: where the store is served.
struct Endpoint {
  std::string host;
  int64_t port = 0;
};

// "HOST:PORT", "[IPV6]:PORT", or a host alone, whose port is `default_port`. Throws c10::ValueError for anything else.
Endpoint parse_endpoint(const std::string& text, int64_t default_port);

// --master_addr: a host, perhaps with its port, and --master_port, if it was given. Throws c10::ValueError if `address`
// is none, or they name two ports.
Endpoint parse_master(const std::string& address, std::optional<int64_t> port, int64_t default_port);

// What --rdzv_conf says, with torchrun's names.
struct RendezvousOptions {
  std::chrono::milliseconds join_timeout{600'000};       // until a round is complete
  std::chrono::milliseconds last_call_timeout{30'000};   // c10d: for more than the fewest nodes to come
  std::chrono::milliseconds close_timeout{30'000};       // the host's, at the end: for the others to see it
  std::chrono::milliseconds heartbeat_timeout{10'000};   // until a host that does not answer is given up
  std::chrono::milliseconds read_timeout{60'000};        // for the host to be reachable at first
  std::chrono::milliseconds keep_alive_interval{1'000};  // between a node's signs of life
  int64_t keep_alive_max_attempt = 10;                   // so many of them missing: the node is lost
  std::optional<bool> is_host;                           // c10d: whether this launcher serves the store; else found out

  // After which a node without a sign of life is lost.
  std::chrono::milliseconds silence() const { return keep_alive_interval * keep_alive_max_attempt; }
};

// "key=value,key=value" for --rdzv_backend=`backend`. Times are seconds. Throws c10::ValueError for an unknown key, a
// value that is none, and a key that means nothing for the backend.
RendezvousOptions parse_rendezvous_options(const std::string& text, const std::string& backend);

}  // namespace narrowcast::launcher
