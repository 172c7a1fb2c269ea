// How many connections a link needs.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/comm/node/node_layout.h"

namespace narrowcast::connections {

// A link between nodes while all its ranks send, as measured.
struct LongLink {
  double round_trip_seconds = 0;
  double bytes_per_second = 0;  // 0 if no rank has measured it.
  double bytes_under_way = 0;   // That TCP lets one connection have sent without an answer.
};

// Links with a shorter round trip are full with the group's own connection.
inline constexpr double kLeastRoundTripSeconds = 2e-3;

// The rate of a link that was not measured: 1 Gbit/s.
inline constexpr double kUsualBytesPerSecond = 1.25e8;

// The rate for which connections are chosen. A busy machine measures less than the link has, and too few connections
// cost more time than too many. So a rate below kUsualBytesPerSecond is doubled, but to no more than that one.
double chosen_rate(const LongLink& link);

// The least number of connections with each of `peers` ranks, 2 to `most`, which fills the link.
//
// A byte is answered after a round trip, until when it is under way. So the link is full if chosen_rate *
// round_trip_seconds bytes (the bandwidth-delay product) are under way over all connections. A rank sends to all peers
// at once. So K connections with each of P peers fill the link if K * P * bytes_under_way is at least this product. A
// quarter more makes up for errors of the measurement, and for connections that are idle between two frames.
int64_t connections_for(const LongLink& link, int64_t peers, int64_t most);

// Each rank receives from a peer for five round trips, at most this time.
inline constexpr double kMostTrialSeconds = 0.3;

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

// A collective: the number of connections with each peer on other nodes, the same on all ranks, at most `most` and at
// most as many as RLIMIT_NOFILE allows on each rank. It is 1 for one node, and for a round trip below
// kLeastRoundTripSeconds. Else measure_long_link measures the link. The choice is kept for that layout as long as the
// group lives. Throws as open_connections.
Choice choose_connections(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const node::NodeLayout& layout,
                          int64_t most);

// The reason of the last choice of this group; empty if it has made none, or if it was another number.
std::string reason_for(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int64_t connections);

}  // namespace narrowcast::connections
