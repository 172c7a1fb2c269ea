#include "ops/comm/connections/connections.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/comm/connections/gloo_address.h"
#include "ops/comm/connections/meeting.h"
#include "ops/comm/connections/striped_messages.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"
#include "ops/common/backend_errors.h"
#include "ops/common/backend_timeout.h"
#include "ops/common/error_message.h"
#include "ops/common/open_files.h"

namespace narrowcast::connections {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WeakBackend = c10::weak_intrusive_ptr<c10d::Backend>;
using node::NodeLayout;

constexpr const char* kOpening = "opening connections";

// All ranks connect at the same time. A firewall that drops packets is noticed after this time.
constexpr std::chrono::milliseconds kPatience{30000};

// A rank without peers listens there for nobody.
constexpr const char* kNoPeers = "127.0.0.1";

// The epoll, the event and the listener.
constexpr int64_t kOtherFiles = 3;

// Carries an engine's messages: to peers over their sockets, to other ranks over the group's backend.
class Connections final : public c10d::Backend {
 public:
  // Keeps no reference to `backend`, so that the end of the group is noticed.
  Connections(const BackendPtr& backend, int64_t count, SocketsByPeer sockets)
      : Backend(backend->getRank(), backend->getSize()),
        count_(count),
        peers_(peers_in(sockets)),
        backend_(backend),
        messages_(std::move(sockets), {.timeout = [weak = WeakBackend(backend)] { return timeout_in(weak); },
                                       .is_over = [weak = WeakBackend(backend)] { return weak.expired(); }}) {}

  bool is_of(const c10d::Backend& backend) const {
    return backend_._unsafe_get_target() == &backend && !backend_.expired();
  }
  bool connects(int64_t count, const std::vector<int64_t>& peers) const {
    return count == count_ && peers == peers_ && !is_closed_ && !messages_.has_lost_peers();
  }

  const std::string getBackendName() const override { return "connections"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return backend()->getBackendOptions(); }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    return reaches(peer) ? messages_.send(peer, tag, tensors.at(0)) : backend()->send(tensors, peer, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    return reaches(peer) ? messages_.receive(peer, tag, tensors.at(0)) : backend()->recv(tensors, peer, tag);
  }

  void abort() override {
    is_closed_ = true;
    messages_.close("the connections were closed on this rank");
  }

 private:
  static std::vector<int64_t> peers_in(const SocketsByPeer& sockets) {
    std::vector<int64_t> peers;
    for (const auto& [peer, of_peer] : sockets) peers.push_back(peer);
    return peers;
  }

  static std::chrono::milliseconds timeout_in(const WeakBackend& weak) {
    const BackendPtr backend = weak.lock();
    return backend == nullptr ? kBackendDefaultTimeout : timeout_of(*backend);
  }

  bool reaches(int64_t peer) const { return std::ranges::binary_search(peers_, peer); }

  // An engine that sends holds the backend as well.
  BackendPtr backend() const {
    BackendPtr backend = backend_.lock();
    TORCH_CHECK_WITH(DistBackendError, backend != nullptr, "the process group was destroyed");
    return backend;
  }

  const int64_t count_;
  const std::vector<int64_t> peers_;  // In ascending order.
  const WeakBackend backend_;
  StripedMessages messages_;
  std::atomic<bool> is_closed_{false};
};

using ConnectionsPtr = c10::intrusive_ptr<Connections>;

// All connections of the process.
struct AllConnections {
  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<Connections>> list;
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
  const auto* const current = dynamic_cast<const Connections*>(carrier.backend.get());
  return current != nullptr && current->connects(count, peers);
}

void check_count(int64_t count) {
  TORCH_CHECK_VALUE(count >= 1 && count <= kMostConnections, "connections: must be in 1..", kMostConnections,
                    ", but is ", count);
}

void check_open_files(int64_t count, const std::vector<int64_t>& peers) {
  const int64_t needed = count * std::ssize(peers) + kOtherFiles;
  const int64_t left = network::open_files_left(needed);
  TORCH_CHECK_VALUE(left >= needed, "connections: ", count, " with each of ", peers.size(), " ranks need ", needed,
                    " files, but RLIMIT_NOFILE of ", network::open_file_limit(), " leaves ", left,
                    "; raise the limit (ulimit -n)");
}

std::vector<Card> exchange_cards(const Group& group, const Card& own) {
  static_assert(std::is_trivially_copyable_v<Card>);
  at::Tensor row = at::zeros({sizeof(Card)}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &own, sizeof(Card));
  const at::Tensor rows = collectives::all_gather_rows(group, kOpening, row, at::kCPU);
  std::vector<Card> cards(static_cast<size_t>(group->getSize()));
  std::memcpy(cards.data(), rows.const_data_ptr(), rows.nbytes());
  return cards;
}

// Connects, and compares how it went: if one rank fails, all fail, and none waits for it. Null for a rank without
// peers.
ConnectionsPtr meet_together(const Group& group, const Listener& listener, const MeetingOptions& options) {
  const std::vector<Card> cards = exchange_cards(group, listener.card());
  ConnectionsPtr opened;
  std::string failure;
  try {
    SocketsByPeer sockets = meet(listener, cards, options);
    if (!sockets.empty()) {
      opened = c10::make_intrusive<Connections>(group->getBackend(c10::DeviceType::CPU), options.connections,
                                                std::move(sockets));
    }
  } catch (const std::exception& error) {
    failure = error_message(error);
  }
  const std::vector<double> failed =
      collectives::greatest_of_ranks(group, kOpening, {failure.empty() ? 0.0 : static_cast<double>(options.rank) + 1});
  if (!failure.empty()) throw_backend_error(options.rank, kOpening, failure);
  if (failed[0] > 0) {
    throw_backend_error(options.rank, kOpening, c10::str("rank ", failed[0] - 1, " could not connect to its peers"));
  }
  return opened;
}

// Watches can close them from now on.
void remember(const ConnectionsPtr& opened) {
  AllConnections& known = all_connections();
  const std::lock_guard<std::mutex> lock(known.mutex);
  std::erase_if(known.list, [](const auto& weak) { return weak.expired(); });
  known.list.emplace_back(opened);
}

}  // namespace

void open_connections(const Group& group, int64_t count, const NodeLayout& layout) {
  TORCH_CHECK_VALUE(group, "process_group must be a process group, but is null");
  if (group->getSize() == 1) {
    check_count(count);
    return;
  }
  const auto engine = engine::Engine::for_group(group);
  const BackendPtr backend = group->getBackend(c10::DeviceType::CPU);
  const std::vector<int64_t> peers = count == 1 ? std::vector<int64_t>() : peers_of(group->getRank(), layout);
  const bool has_them = has_connections(engine->carrier(), count, peers);
  std::optional<Listener> listener;
  collectives::Announcement own{
      .call = kOpening, .entries = {{"connections", std::to_string(count)}}, .numbers = {has_them ? 1 : 0}};
  own.refusal = collectives::refusal_of([&] {
    check_count(count);
    const std::string ip = count == 1 ? kNoPeers : gloo_address(*backend);
    if (!has_them) check_open_files(count, peers);
    TORCH_CHECK_VALUE(engine->is_idle(), "connections: an exchange of the group is in flight");
    if (count == 1) return;
    try {
      listener.emplace(peers.empty() ? kNoPeers : ip);
    } catch (const std::system_error& error) {
      TORCH_CHECK_VALUE(false, "connections: ", error.what());
    }
  });
  const std::vector<collectives::Announcement> all = collectives::agree(group, own);
  if (std::ranges::all_of(all, [](const auto& each) { return each.numbers.at(0) == 1; })) return;
  if (count == 1) {
    engine->send_over({});
    return;
  }
  // Others wait for this rank's answer to the meeting as long as for a message.
  ConnectionsPtr opened = meet_together(group, *listener,
                                        {.rank = group->getRank(),
                                         .peers = peers,
                                         .connections = count,
                                         .patience = std::min(kPatience, timeout_of(*backend) / 2)});
  if (opened != nullptr) remember(opened);
  // A node's memory has slots for the usual number of exchanges.
  const size_t in_flight = layout.has_levels() ? engine::kMaxInFlight : engine::kMaxInFlightOverCarrier;
  engine->send_over({.backend = std::move(opened), .most_in_flight = in_flight, .connections = count});
}

void close_connections(const c10d::Backend& backend) {
  std::vector<ConnectionsPtr> closed;
  {
    AllConnections& known = all_connections();
    const std::lock_guard<std::mutex> lock(known.mutex);
    for (const auto& weak : known.list) {
      if (auto each = weak.lock(); each != nullptr && each->is_of(backend)) closed.push_back(std::move(each));
    }
  }
  for (const ConnectionsPtr& each : closed) each->abort();
}

}  // namespace narrowcast::connections
