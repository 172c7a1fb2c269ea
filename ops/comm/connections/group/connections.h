// Connections of a group's engine, besides the connections of the group's backend.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include <narrowcast/export.h>
#include "ops/comm/connections/choice/choose.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::connections {

// The largest number of connections with a peer.
inline constexpr int64_t kMostConnections = 64;

// Only tests set them.
struct OpeningOptions {
  int64_t most_early_bytes = int64_t{1} << 28;       // See StripedMessages::Options.
  double least_round_trip = kLeastRoundTripSeconds;  // With a shorter one the ranks choose one connection.
};

}  // namespace narrowcast::connections

namespace narrowcast {
namespace NARROWCAST_EXPORT connections {

// A collective: from now on the engine of `group` sends messages between nodes over that number of TCP connections with
// each peer. Without a number, the ranks measure the link and choose one (choice/choose.h). With 1 it uses the
// connection of the group's backend, as before the first call, and also for one node. A rank has connections with the
// owners of its segment on other nodes (NodeLayout), with every rank if each rank is a node. Other messages use the
// backend's connection. The bits of results do not depend on the number.
//
// No exchange of the group may be in flight. If the group has these connections already, all ranks keep them. They live
// as long as the group; its other collectives do not use them. They are opened at the address of the group's Gloo
// backend. Thread-safe.
//
// Throws c10::ValueError on all ranks if `count` is not in 1..kMostConnections or differs between ranks, or if only
// some ranks give one. It does so as well if a rank may not open the files (RLIMIT_NOFILE), if an exchange of the group
// is in flight, or if the group's backend for CPU tensors is not Gloo. Throws c10::DistBackendError on all ranks if
// some cannot connect.
void open_connections(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::optional<int64_t> count,
                      const node::NodeLayout& layout, const OpeningOptions& options = {});

// A collective: TCP connections of this rank with `peers`, ranks that have this rank among theirs, over which only the
// caller sends. The group's engine and other callers do not use them. All ranks pass the same `call`, which names the
// purpose in errors, and the same `count` per peer; without a number, the ranks choose one. Returns a backend with the
// ranks of the group that sends to the peers and receives from them, and whose works report isCompleted. Null without
// peers. Throws as open_connections.
c10::intrusive_ptr<c10d::Backend> connect_to_peers(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                   const std::string& call, const std::vector<int64_t>& peers,
                                                   std::optional<int64_t> count);

// The number of connections in use, and the reason if the ranks have chosen it or if there is one node: "4 (auto:
// ...)", "1 (one node)". Thread-safe.
std::string connections_text(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// Ends the connections of Gloo's `backend`, and those of engines whose groups have it: messages in progress and later
// ones fail on this rank and on its peers. Takes some milliseconds. Thread-safe.
void close_connections(c10d::Backend& backend);

}  // namespace connections
}  // namespace narrowcast
