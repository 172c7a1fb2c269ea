#include "ops/comm/connections/group/socket_backend.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "ops/comm/connections/group/pair_watch.h"
#include "ops/common/backend_timeout.h"

namespace narrowcast::connections {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WeakBackend = c10::weak_intrusive_ptr<c10d::Backend>;

std::vector<int64_t> peers_in(const SocketsByPeer& sockets) {
  std::vector<int64_t> peers;
  for (const auto& [peer, of_peer] : sockets) peers.push_back(peer);
  return peers;
}

// Looks after the group's backend for its sockets.
class GroupWatcher {
 public:
  GroupWatcher(const BackendPtr& backend, const std::vector<int64_t>& peers, int networks)
      : backend_(backend), pairs_(std::make_unique<PairWatch>(*backend, peers, networks)) {}

  StripedMessages::News look() {
    if (backend_.expired()) {
      pairs_.reset();
      return {.over = "the process group was destroyed on this rank"};
    }
    PairWatch::News news = pairs_->look();
    if (news.time_out.empty()) return {.left = std::move(news.left)};
    return {.over = c10::str("the process group has closed its connections: ", news.time_out)};
  }

 private:
  const WeakBackend backend_;
  std::unique_ptr<PairWatch> pairs_;
};

StripedMessages::Options options_for(const BackendPtr& backend, const std::vector<int64_t>& peers, int networks,
                                     int64_t most_early_bytes) {
  const WeakBackend weak(backend);
  return {.timeout =
              [weak] {
                const BackendPtr group = weak.lock();
                return group == nullptr ? kBackendDefaultTimeout : timeout_of(*group);
              },
          .look = [watcher = std::make_shared<GroupWatcher>(backend, peers, networks)] { return watcher->look(); },
          .on_failure =
              [weak] {
                if (const BackendPtr group = weak.lock()) close_pairs(*group);
              },
          .most_early_bytes = most_early_bytes};
}

}  // namespace

SocketBackend::SocketBackend(const BackendPtr& backend, int networks, int64_t connections, SocketsByPeer sockets,
                             int64_t most_early_bytes)
    : Backend(backend->getRank(), backend->getSize()),
      connections_(connections),
      peers_(peers_in(sockets)),
      backend_(backend),
      messages_(std::move(sockets), options_for(backend, peers_, networks, most_early_bytes)) {}

c10::intrusive_ptr<c10d::Work> SocketBackend::send(std::vector<at::Tensor>& tensors, int peer, int tag) {
  return reaches(peer) ? messages_.send(peer, tag, tensors.at(0)) : backend()->send(tensors, peer, tag);
}

c10::intrusive_ptr<c10d::Work> SocketBackend::recv(std::vector<at::Tensor>& tensors, int peer, int tag) {
  return reaches(peer) ? messages_.receive(peer, tag, tensors.at(0)) : backend()->recv(tensors, peer, tag);
}

bool SocketBackend::reaches(int64_t peer) const { return std::ranges::binary_search(peers_, peer); }

// An engine that sends holds the backend as well.
BackendPtr SocketBackend::backend() const {
  BackendPtr backend = backend_.lock();
  TORCH_CHECK_WITH(DistBackendError, backend != nullptr, "the process group was destroyed");
  return backend;
}

}  // namespace narrowcast::connections
