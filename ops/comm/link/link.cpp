#include "ops/comm/link/link.h"

#include <ATen/ops/zeros.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/group.h"
#include "ops/comm/link/link_probe.h"
#include "ops/comm/link/stream_link.h"
#include "ops/comm/node/find_nodes.h"
#include "ops/common/median.h"

namespace narrowcast::collectives {
namespace {

using node::NodeLayout;
using Clock = std::chrono::steady_clock;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kPingBytes = engine::Transport::kLeastBytes;

// Round trips between a rank and its peers: it pings one peer and answers the pings of the other. Ping i is sent on
// channel 2 i, its echo on channel 2 i + 1. A rank without peers runs an empty exchange, because exchange numbers must
// stay equal on all ranks.
class PingJob final : public engine::Job {
 public:
  PingJob(const std::optional<LinkPeers>& peers, int64_t pings)
      : peers_(peers.value_or(LinkPeers{})), pings_(peers ? pings : 0) {
    for (int64_t message = 0; message < 2 * pings_; ++message) {
      received_.push_back(at::zeros({kPingBytes}, at::kByte));
    }
  }

  std::string name() const override { return kMeasuringLink; }
  int64_t advances() const override { return 2 * pings_; }

  void start(engine::Transport& transport) override {
    for (int64_t ping = 0; ping < pings_; ++ping) {
      receives_.push_back(transport.post_receive({received_[2 * ping], peers_.from, 2 * ping}));
      receives_.push_back(transport.post_receive({received_[2 * ping + 1], peers_.to, 2 * ping + 1}));
    }
    if (pings_ > 0) {
      send_ping(transport, 0);
    }
  }

  // Even steps answer a ping of the peer. Odd steps receive the echo of the own ping and send the next one.
  void advance(engine::Transport& transport) override {
    const int64_t message = advanced_++;
    transport.wait_receive(receives_[message]);
    if (message % 2 == 0) {
      transport.send({sent_, peers_.from, message + 1});
      return;
    }
    seconds_.push_back(std::chrono::duration<double>(Clock::now() - began_).count());
    if (message + 1 < 2 * pings_) {
      send_ping(transport, message + 1);
    }
  }

  at::Tensor finish(engine::Transport& /*transport*/) override { return sent_; }

  // Seconds of one way, after the exchange; 0 without peers.
  double seconds_per_hop() const { return seconds_.empty() ? 0 : median(seconds_) / 2; }

 private:
  void send_ping(engine::Transport& transport, int64_t channel) {
    began_ = Clock::now();
    transport.send({sent_, peers_.to, channel});
  }

  const LinkPeers peers_;
  const int64_t pings_;
  const at::Tensor sent_ = at::zeros({kPingBytes}, at::kByte);
  std::vector<at::Tensor> received_;
  std::vector<int64_t> receives_;
  int64_t advanced_ = 0;
  Clock::time_point began_;
  std::vector<double> seconds_;
};

// One message to a peer while one arrives from the other; empty without peers.
class BulkJob final : public engine::Job {
 public:
  BulkJob(const std::optional<LinkPeers>& peers, int64_t bytes)
      : peers_(peers),
        sent_(at::zeros({peers ? bytes : 0}, at::kByte)),
        received_(at::zeros({peers ? bytes : 0}, at::kByte)) {}

  std::string name() const override { return kMeasuringLink; }

  int64_t advances() const override { return 0; }

  void start(engine::Transport& transport) override {
    if (peers_) {
      receive_ = transport.post_receive({received_, peers_->from, 0});
      began_ = Clock::now();
      transport.send({sent_, peers_->to, 0});
    }
  }

  at::Tensor finish(engine::Transport& transport) override {
    if (!peers_) {
      return received_;
    }
    transport.wait_receive(receive_);
    transport.wait_sends();
    seconds_ = std::chrono::duration<double>(Clock::now() - began_).count();
    return received_;
  }

  double seconds() const { return seconds_; }

 private:
  const std::optional<LinkPeers> peers_;
  const at::Tensor sent_;
  const at::Tensor received_;
  int64_t receive_ = 0;
  Clock::time_point began_;
  double seconds_ = 0;
};

// Measures with messages between CPUs. The ranks agree on each figure before the next message, whose size depends on
// it. They therefore also begin together.
class EngineProbe final : public LinkProbe {
 public:
  EngineProbe(const Group& group, const std::optional<LinkPeers>& peers)
      : group_(group), peers_(peers), engine_(engine::Engine::for_group(group)) {}

  double seconds_per_hop(int64_t pings) override {
    const auto job = std::make_shared<PingJob>(peers_, pings);
    engine_->submit(job)->waitAndThrow();
    payload_bytes_sent_ += peers_ ? 2 * pings * kPingBytes : 0;
    return most_of_any_rank(job->seconds_per_hop());
  }

  double seconds_of_message(int64_t bytes) override {
    const auto job = std::make_shared<BulkJob>(peers_, bytes);
    engine_->submit(job)->waitAndThrow();
    payload_bytes_sent_ += peers_ ? bytes : 0;
    return most_of_any_rank(job->seconds());
  }

  int64_t payload_bytes_sent() const override { return payload_bytes_sent_; }

 private:
  double most_of_any_rank(double seconds) const { return greatest_of_ranks(group_, kMeasuringLink, {seconds})[0]; }

  const Group group_;
  const std::optional<LinkPeers> peers_;
  const std::shared_ptr<engine::Engine> engine_;
  int64_t payload_bytes_sent_ = 0;
};

std::optional<LinkPeers> peers_within_node(const NodeLayout& layout, int64_t rank) {
  const std::vector<int64_t>& local = layout.ranks_of(layout.node_of(rank));
  const auto size = static_cast<int64_t>(local.size());
  if (size == 1) {
    return std::nullopt;
  }
  const int64_t local_rank = layout.local_rank_of(rank);
  return LinkPeers{local[(local_rank + 1) % size], local[(local_rank + size - 1) % size]};
}

// Bytes sent for measurements in the group.
std::shared_ptr<std::atomic<int64_t>> counter_of(const Group& group) {
  static PerGroup<std::atomic<int64_t>> counters;
  return counters.of(group);
}

}  // namespace

int64_t measuring_bytes_sent(const Group& group) { return *counter_of(group); }

void count_measuring_bytes(const Group& group, int64_t bytes) { *counter_of(group) += bytes; }

std::optional<LinkPeers> peers_between_nodes(const NodeLayout& layout, int64_t rank) {
  const int64_t local_rank = layout.local_rank_of(rank);
  if (local_rank >= layout.segments()) {
    return std::nullopt;
  }
  const int64_t nodes = layout.nodes();
  const int64_t node = layout.node_of(rank);
  const int64_t distance = nodes / 2;
  return LinkPeers{layout.ranks_of((node + distance) % nodes)[local_rank],
                   layout.ranks_of((node + nodes - distance) % nodes)[local_rank]};
}

double measure_hop(const Group& group, const std::optional<LinkPeers>& peers, int64_t pings) {
  return EngineProbe(group, peers).seconds_per_hop(pings);
}

LinkRates measure_link(const Group& group, const std::optional<LinkPeers>& peers, const LinkEffort& effort) {
  EngineProbe probe(group, peers);
  return measure_by(probe, effort);
}

std::shared_ptr<const Link> find_link(const Group& group, const NodeLayout& layout, at::Device device) {
  static PerGroup<KeptByKey<std::pair<NodeLayout, int64_t>, Link>> links;
  const auto kept = links.of(group);
  const std::pair key(layout, device.is_cpu() ? engine::Engine::for_group(group)->carrier().connections : 1);
  if (auto known = kept->find(key)) {
    return known;
  }
  const int64_t rank = group->getRank();
  const auto measure = [&](const std::optional<LinkPeers>& peers) {
    const LinkRates rates = device.is_cpu() ? measure_link(group, peers) : measure_link_on_stream(group, device, peers);
    count_measuring_bytes(group, rates.payload_bytes_sent);
    return rates.cost;
  };
  Link link;
  if (layout.nodes() > 1) {
    link.between_nodes = measure(peers_between_nodes(layout, rank));
  }
  if (layout.has_levels()) {
    link.within_node = measure(peers_within_node(layout, rank));
  }
  auto found = std::make_shared<const Link>(link);
  kept->keep(key, found);
  return found;
}

}  // namespace narrowcast::collectives
