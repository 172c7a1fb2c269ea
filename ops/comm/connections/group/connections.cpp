#include "ops/comm/connections/group/connections.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/comm/connections/choice/choose.h"
#include "ops/comm/connections/group/pair_watch.h"
#include "ops/comm/connections/group/socket_backend.h"
#include "ops/comm/connections/meeting/gloo_address.h"
#include "ops/comm/connections/meeting/meet_together.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/agree.h"
#include "ops/common/open_files.h"

namespace narrowcast::connections {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using node::NodeLayout;

constexpr const char* kOpening = "opening connections";

using SocketBackendPtr = c10::intrusive_ptr<SocketBackend>;

// All connections of the process.
struct AllConnections {
  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<SocketBackend>> list;
};

// Never destroyed: a watch's thread may be left behind, and run while static objects are destroyed.
AllConnections& all_connections() {
  static AllConnections& instance = *std::make_unique<AllConnections>().release();
  return instance;
}

// The ranks on other nodes with which this rank exchanges segments.
std::vector<int64_t> peers_of(int64_t rank, const NodeLayout& layout) {
  const int64_t local_rank = layout.local_rank_of(rank);
  if (local_rank >= layout.segments()) return {};
  std::vector<int64_t> peers = layout.owners_of(local_rank);
  std::erase(peers, rank);
  std::ranges::sort(peers);
  return peers;
}

bool has_connections(const engine::Carrier& carrier, int64_t count, const std::vector<int64_t>& peers) {
  if (peers.empty()) return carrier.backend == nullptr && carrier.connections == count;
  const auto* const current = dynamic_cast<const SocketBackend*>(carrier.backend.get());
  return current != nullptr && current->connects(count, peers);
}

void check_count(int64_t count) {
  TORCH_CHECK_VALUE(count >= 1 && count <= kMostConnections, "connections: must be in 1..", kMostConnections,
                    ", but is ", count);
}

void check_open_files(int64_t count, const std::vector<int64_t>& peers) {
  if (count == 1) return;
  const int64_t needed = count * std::ssize(peers) + kOtherFiles;
  const int64_t left = network::open_files_left(needed);
  TORCH_CHECK_VALUE(left >= needed, "connections: ", count, " with each of ", peers.size(), " ranks need ", needed,
                    " files, but RLIMIT_NOFILE of ", network::open_file_limit(), " leaves ", left,
                    "; raise the limit (ulimit -n)");
}

void check_is_idle(const engine::Engine& engine) {
  TORCH_CHECK_VALUE(engine.is_idle(), "connections: an exchange of the group is in flight");
}

struct Asked {
  int64_t connections = 1;
  std::string reason = {};  // Empty if the caller has given the number.
};

// A collective, if no number is given.
Asked asked_connections(const Group& group, const engine::Engine& engine, std::optional<int64_t> given,
                        const NodeLayout& layout, const OpeningOptions& options) {
  if (given) return {*given, layout.nodes() == 1 && *given > 1 ? "one node" : ""};
  const auto peers = layout.nodes() == 1 ? std::vector<int64_t>() : peers_of(group->getRank(), layout);
  const engine::Carrier now = engine.carrier();
  const Choice choice =
      choose_connections(group, layout,
                         {.call = kOpening,
                          .most = kMostConnections,
                          .peers = std::ssize(peers),
                          .open_now = has_connections(now, now.connections, peers) ? now.connections : 0,
                          .refusal = collectives::refusal_of([&] { check_is_idle(engine); }),
                          .least_round_trip = options.least_round_trip});
  return {choice.connections, "auto: " + choice.reason};
}

// Watches can close them from now on.
void remember(const SocketBackendPtr& opened) {
  AllConnections& known = all_connections();
  const std::lock_guard<std::mutex> lock(known.mutex);
  std::erase_if(known.list, [](const auto& weak) { return weak.expired(); });
  known.list.emplace_back(opened);
}

}  // namespace

void open_connections(const Group& group, std::optional<int64_t> given, const NodeLayout& layout,
                      const OpeningOptions& options) {
  TORCH_CHECK_VALUE(group, "process_group must be a process group, but is null");
  if (group->getSize() == 1) {
    if (given) check_count(*given);
    return;
  }
  const auto engine = engine::Engine::for_group(group);
  const BackendPtr backend = group->getBackend(c10::DeviceType::CPU);
  const Asked asked = asked_connections(group, *engine, given, layout, options);
  const int64_t count = layout.nodes() == 1 ? 1 : asked.connections;  // One node opens none.
  const std::vector<int64_t> peers = count == 1 ? std::vector<int64_t>() : peers_of(group->getRank(), layout);
  const bool has_them = has_connections(engine->carrier(), count, peers);
  std::optional<Listener> listener;
  collectives::Announcement own{
      .call = kOpening, .entries = {{"connections", std::to_string(asked.connections)}}, .numbers = {has_them ? 1 : 0}};
  own.refusal = collectives::refusal_of([&] {
    check_count(asked.connections);
    if (!has_them) check_open_files(count, peers);
    check_is_idle(*engine);
    if (count > 1) listener.emplace(listen_for_peers(*backend, {peers, count}));
  });
  const std::vector<collectives::Announcement> all = collectives::agree(group, own);
  if (std::ranges::all_of(all, [](const auto& each) { return each.numbers.at(0) == 1; })) {
    engine::Carrier kept = engine->carrier();
    kept.reason = asked.reason;
    engine->send_over(std::move(kept));
    return;
  }
  if (count == 1) {
    engine->send_over({.reason = asked.reason});
    return;
  }
  SocketBackendPtr opened;  // Null for a rank without peers.
  meet_together(group, kOpening, *listener, {peers, count}, [&](SocketsByPeer sockets) {
    if (sockets.empty()) return;
    opened = c10::make_intrusive<SocketBackend>(backend, gloo_networks(*backend), count, std::move(sockets),
                                                options.most_early_bytes);
  });
  if (opened != nullptr) remember(opened);
  // A node's memory has slots for the usual number of exchanges.
  const size_t in_flight = layout.has_levels() ? engine::kMaxInFlight : engine::kMaxInFlightOverCarrier;
  engine->send_over(
      {.backend = std::move(opened), .most_in_flight = in_flight, .connections = count, .reason = asked.reason});
}

BackendPtr connect_to_peers(const Group& group, const std::string& call, const std::vector<int64_t>& peers,
                            std::optional<int64_t> given) {
  TORCH_CHECK_VALUE(group, "process_group must be a process group, but is null");
  const int64_t count = given ? *given
                              : choose_connections(group, NodeLayout::flat(group->getSize()),
                                                   {.call = call, .most = kMostConnections, .peers = std::ssize(peers)})
                                    .connections;
  std::optional<Listener> listener;
  collectives::Announcement own{.call = call, .entries = {{"connections", std::to_string(count)}}};
  own.refusal = collectives::refusal_of([&] {
    check_count(count);
    check_open_files(count, peers);
    listener.emplace(listen_for_peers(*group->getBackend(c10::DeviceType::CPU), {peers, count}));
  });
  collectives::agree(group, own);
  SocketBackendPtr connected;
  meet_together(group, call, *listener, {peers, count}, [&](SocketsByPeer sockets) {
    if (sockets.empty()) return;
    const BackendPtr backend = group->getBackend(c10::DeviceType::CPU);
    connected = c10::make_intrusive<SocketBackend>(backend, gloo_networks(*backend), count, std::move(sockets),
                                                   OpeningOptions{}.most_early_bytes);
  });
  if (connected != nullptr) remember(connected);
  return connected;
}

std::string connections_text(const Group& group) {
  if (group->getSize() == 1) return "1 (one rank)";
  const engine::Carrier carrier = engine::Engine::for_group(group)->carrier();
  return std::to_string(carrier.connections) + (carrier.reason.empty() ? "" : " (" + carrier.reason + ")");
}

void close_connections(c10d::Backend& backend) {
  std::vector<SocketBackendPtr> closed;
  {
    AllConnections& known = all_connections();
    const std::lock_guard<std::mutex> lock(known.mutex);
    for (const auto& weak : known.list) {
      if (auto each = weak.lock(); each != nullptr && each->is_of(backend)) closed.push_back(std::move(each));
    }
  }
  for (const SocketBackendPtr& each : closed) each->abort();
  close_pairs(backend);
}

}  // namespace narrowcast::connections
