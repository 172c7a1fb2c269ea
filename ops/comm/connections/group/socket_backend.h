// The backend that carries an engine's messages over sockets.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "ops/comm/connections/messages/striped_messages.h"

namespace narrowcast::connections {

// Sends messages to peers over their sockets, and to other ranks over the group's backend, which is Gloo's.
//
// The sockets and the pairs of the backend end together: if a wait for one of them times out on this rank, or a socket
// fails, the others are closed within about 0.1 s. The exchange in progress then fails, and names the rank that it was
// waiting for. The end of a peer ends only the connections with that peer. If the network ends a socket of two ranks
// that live, both fail at once, and the others when one of the two leaves, or after the timeout.
class SocketBackend final : public c10d::Backend {
 public:
  // Keeps no reference to `backend`, so that the end of the group is noticed. `networks`: gloo_networks().
  SocketBackend(const c10::intrusive_ptr<c10d::Backend>& backend, int networks, int64_t connections,
                SocketsByPeer sockets, int64_t most_early_bytes);

  bool is_of(const c10d::Backend& backend) const {
    return backend_._unsafe_get_target() == &backend && !backend_.expired();
  }
  bool connects(int64_t connections, const std::vector<int64_t>& peers) const {
    return connections == connections_ && peers == peers_ && !is_closed_ && !messages_.has_lost_peers();
  }

  const std::string getBackendName() const override { return "connections"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return backend()->getBackendOptions(); }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;

  // Closes the sockets.
  void abort() override {
    is_closed_ = true;
    messages_.close("the connections were closed on this rank");
  }

 private:
  bool reaches(int64_t peer) const;
  c10::intrusive_ptr<c10d::Backend> backend() const;

  const int64_t connections_;         // With each peer.
  const std::vector<int64_t> peers_;  // In ascending order.
  const c10::weak_intrusive_ptr<c10d::Backend> backend_;
  std::atomic<bool> is_closed_{false};
  StripedMessages messages_;
};

}  // namespace narrowcast::connections
