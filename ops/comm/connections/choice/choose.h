// How many connections a link needs.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/comm/groups/arguments.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::connections {

// A link between nodes while all its ranks send, as measured.
struct LongLink {
  double round_trip_seconds = 0;
  double bytes_per_second = 0;  // 0 if no rank has measured it.
  double bytes_under_way = 0;   // The most that one connection has sent without an answer.
};

// Links with a shorter round trip are full with the group's own connection.
inline constexpr double kLeastRoundTripSeconds = 2e-3;

// The rate of a link that was not measured: 1 Gbit/s.
inline constexpr double kUsualBytesPerSecond = 1.25e8;

// The rate for which connections are chosen. A busy machine measures less than the link has, down to a third, and too
// few connections cost more time than too many. So a rate below kUsualBytesPerSecond counts three times, but as no more
// than that one.
double chosen_rate(const LongLink& link);

// The least number of connections with each of `peers` ranks, from 2 to `most` >= 2, which fills the link.
//
// A byte is answered after a round trip, until when it is under way. So the link is full if chosen_rate *
// round_trip_seconds bytes (the bandwidth-delay product) are under way over all connections. A rank sends to all peers
// at once. So K connections with each of P peers fill the link if K * P * bytes_under_way is at least this product. A
// quarter more makes up for errors of the measurement, and for connections that are idle between two frames.
int64_t connections_for(const LongLink& link, int64_t peers, int64_t most);

// "round trip 40.0 ms, 1.00 Gbit/s, 4.0 MB in one", with the rate of the link and, if it differs, the chosen one.
std::string text_of(const LongLink& link);

// A collective: measures a link over new connections, which end with it. Equal on all ranks, which pass the same
// `most_round_trip`, an upper bound in seconds. The rate is the least of the ranks that could measure one. Throws as
// open_connections.
LongLink measure_long_link(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const node::NodeLayout& layout,
                           double most_round_trip);

struct Choice {
  int64_t connections = 1;
  std::string reason;
};

// What the connections are for.
struct Use {
  std::string call = {};  // Its name in errors. The same on all ranks.
  int64_t most = 64;      // Connections with each peer. The same on all ranks.
  int64_t peers = 0;      // Ranks on other nodes with which this rank will have connections.
  int64_t open_now = 0;   // The number of connections that it already has with each of them, and may keep.
  std::optional<collectives::Refusal> refusal = std::nullopt;  // Why this rank cannot take part.
  double least_round_trip = kLeastRoundTripSeconds;
};

// A collective: the number of connections with each peer on other nodes, the same on all ranks. It is 1 for one node,
// and for a round trip below least_round_trip. Else measure_long_link measures the link. The choice is kept for that
// layout and number of peers as long as the group's CPU backend lives. But no call returns more connections than
// RLIMIT_NOFILE allows at that time on each rank.
//
// Throws as open_connections. A rank that announces another number of connections for the same call
// (collectives::agree) is an error on all ranks.
Choice choose_connections(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const node::NodeLayout& layout,
                          const Use& use);

}  // namespace narrowcast::connections
