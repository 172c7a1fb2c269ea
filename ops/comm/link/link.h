// What it costs to send between the ranks of a group, measured.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include "ops/comm/node/node_layout.h"

namespace narrowcast::collectives {

// What sending costs a rank: each hop waits for its messages once, each byte takes its time on the rank's own link.
// The defaults, for who knows nothing of the network, are one of 10 Gbit/s.
struct LinkCost {
  double seconds_per_hop = 50e-6;
  double seconds_per_byte = 0.8e-9;

  // The seconds per byte of one of `sharers` ranks that send over a card of `gbit` Gbit/s at once, and the inverse.
  static double seconds_per_byte_of(double gbit, int64_t sharers) { return 8e-9 * static_cast<double>(sharers) / gbit; }
  // Between nodes of GPUs where nothing can be measured: a small collective of NCCL's, and a card of 400 Gbit/s that so
  // many ranks send over at once.
  static LinkCost of_gpus(int64_t sharers) { return {20e-6, seconds_per_byte_of(400, sharers)}; }

  double gbit(int64_t sharers = 1) const { return 8e-9 * static_cast<double>(sharers) / seconds_per_byte; }

  bool operator==(const LinkCost&) const = default;
};

// A rank's places in a measurement: to whom it sends, and who sends to it. Every rank that is sent to sends.
struct LinkPeers {
  int64_t to = 0;
  int64_t from = 0;
};

// How much is sent to measure a link.
struct LinkEffort {
  int64_t pings = 20;                      // round trips of each rank, <= 512
  int64_t messages = 3;                    // of the size that counts, >= 1
  double message_seconds = 0.03;           // that one of them should take
  int64_t least_bytes = int64_t{1} << 16;  // of the first; the next ones grow, up to four times at once,
  int64_t most_bytes = int64_t{8} << 20;   // until one takes as long as it should, or is that large
};

// The same on all ranks.
struct LinkRates {
  LinkCost cost;
  int64_t message_bytes = 0;       // of the size that counted
  int64_t payload_bytes_sent = 0;  // by each rank that has peers
};

// A collective, with nothing else in flight; needs a backend for CPU tensors. All ranks that have peers send at once,
// so that those of a node share its card as they do in an exchange. Per hop: half the median of the round trips of 16
// bytes. Per byte: a message to one peer while one comes from the other, the median of the largest ones; what a token
// bucket lets pass at once is used up by those before, which grow. Of either, the slowest rank counts. Takes some 0.1 s
// on a network of 1 to 10 Gbit/s. c10::DistBackendError if a peer or the network fails.
LinkRates measure_link(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::optional<LinkPeers>& peers,
                       const LinkEffort& effort = {});

// What a rank pays between nodes while all ranks that own a segment (NodeLayout) send at once, and within a node while
// all its ranks do. Nothing where there is one node, or where no two ranks share one.
struct Link {
  std::optional<LinkCost> between_nodes;
  std::optional<LinkCost> within_node;
};

// A collective, as measure_link, or on another `device` than the CPU as measure_link_on_stream (stream_link.h), the
// first time; kept for that layout as long as the group lives. Each node sends to the one half of all nodes further:
// where every rank is taken for a node, neighbours may share a machine.
NARROWCAST_EXPORT std::shared_ptr<const Link> find_link(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                        const node::NodeLayout& layout, at::Device device = at::kCPU);

// Payload that this rank has sent over the group to measure: links, and what exchanges take. It is no gradient, and so
// in no hook's count. Thread-safe.
NARROWCAST_EXPORT int64_t measuring_bytes_sent(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
NARROWCAST_EXPORT void count_measuring_bytes(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int64_t bytes);

}  // namespace narrowcast::collectives
