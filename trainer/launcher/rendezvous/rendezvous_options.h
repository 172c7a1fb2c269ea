// The user's options for several nodes: their number, where they meet, and how long they wait for each other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace narrowcast::launcher {

// Longest time that a flag or an entry of --rdzv_conf may have, in seconds: a day.
inline constexpr double kLongestSeconds = 86400;

// --nnodes: minimum and maximum of a round's nodes.
struct NodeCount {
  int64_t least = 1;
  int64_t most = 1;

  bool several() const { return most > 1; }
};

// Parses "N" or "MIN:MAX". Throws c10::ValueError for anything else.
NodeCount parse_nnodes(const std::string& text);

// --rdzv_endpoint: the address of the store.
struct Endpoint {
  std::string host;
  int64_t port = 0;
};

// Parses "HOST:PORT", "[IPV6]:PORT", or a host alone, whose port is `default_port`. Throws c10::ValueError for anything
// else.
Endpoint parse_endpoint(const std::string& text, int64_t default_port);

// Combines --master_addr, a host with or without a port, and --master_port, if it was given. Throws c10::ValueError if
// `address` is not a valid address, or if the two ports differ.
Endpoint parse_master(const std::string& address, std::optional<int64_t> port, int64_t default_port);

// The entries of --rdzv_conf, with torchrun's names.
struct RendezvousOptions {
  std::chrono::milliseconds join_timeout{600'000};       // until a round is complete
  std::chrono::milliseconds last_call_timeout{30'000};   // c10d: for nodes beyond the minimum
  std::chrono::milliseconds close_timeout{30'000};       // how long the host waits at the end for the others to see it
  std::chrono::milliseconds heartbeat_timeout{10'000};   // until a host without new heartbeats is given up
  std::chrono::milliseconds read_timeout{60'000};        // how long to try to reach the host at first
  std::chrono::milliseconds keep_alive_interval{1'000};  // between two heartbeats of a node
  int64_t keep_alive_max_attempt = 10;                   // number of missed heartbeats after which a node is lost
  // Whether this launcher serves the store at first. Empty: found out. With static it may only be false, for a node 0
  // that joins a running job.
  std::optional<bool> is_host;

  // A node without a heartbeat for this time is lost.
  std::chrono::milliseconds silence() const { return keep_alive_interval * keep_alive_max_attempt; }
  // How long a launcher whose connection broke tries to connect again. Others may take over at once.
  std::chrono::milliseconds to_reconnect() const {
    return std::min<std::chrono::milliseconds>(std::chrono::seconds(3), heartbeat_timeout / 2);
  }
  // How long a launcher that takes over waits for the others. They may notice the loss by missing heartbeats, with
  // `pause` between two of the lost host's, and then look for the next host, which pauses for `own_pause`.
  std::chrono::milliseconds to_gather(std::chrono::milliseconds own_pause, std::chrono::milliseconds pause) const {
    return heartbeat_timeout + 2 * std::max(own_pause, pause) + std::chrono::seconds(2);
  }
  // How long a launcher that serves the endpoint waits until another one leads it on, if it was led to a host that is
  // lost. The others may notice the loss by missing heartbeats, the next host gathers them, and looks at the endpoint.
  std::chrono::milliseconds to_be_led_on(std::chrono::milliseconds pause) const {
    return heartbeat_timeout + 2 * pause + to_gather(pause, pause) + std::chrono::seconds(1);
  }
};

// Parses "key=value,key=value" for --rdzv_backend=`backend`. Times are seconds. Throws c10::ValueError for an unknown
// key, an invalid value, and a key without a meaning for the backend.
RendezvousOptions parse_rendezvous_options(const std::string& text, const std::string& backend);

}  // namespace narrowcast::launcher
