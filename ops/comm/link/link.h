// Measured communication cost between the ranks of a group.
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

// A rank's communication cost: a latency for each hop, and a time for each byte on the rank's link. The defaults, for
// an unknown network, are 50 us and 10 Gbit/s.
struct LinkCost {
  double seconds_per_hop = 50e-6;
  double seconds_per_byte = 0.8e-9;

  // Returns the seconds per byte of one of `sharers` ranks that send over a NIC of `gbit` Gbit/s at once.
  static double seconds_per_byte_of(double gbit, int64_t sharers) { return 8e-9 * static_cast<double>(sharers) / gbit; }
  // Estimated cost between nodes of GPUs, if it cannot be measured: the latency of a small NCCL collective, and a NIC
  // of 400 Gbit/s that `sharers` ranks use at once.
  static LinkCost of_gpus(int64_t sharers) { return {20e-6, seconds_per_byte_of(400, sharers)}; }

  // The cost if `sharers` ranks send over the link at once.
  LinkCost shared_by(int64_t sharers) const {
    return {seconds_per_hop, seconds_per_byte * static_cast<double>(sharers)};
  }

  // The inverse of seconds_per_byte_of: Gbit/s of the NIC.
  double gbit(int64_t sharers = 1) const { return 8e-9 * static_cast<double>(sharers) / seconds_per_byte; }

  bool operator==(const LinkCost&) const = default;
};

// A rank's peers in a measurement: it sends to one and receives from the other. Every rank that receives also sends.
struct LinkPeers {
  int64_t to = 0;
  int64_t from = 0;
};

// Limits of the messages of a measurement.
struct LinkEffort {
  int64_t pings = 20;                      // round trips of each rank, <= 512
  int64_t messages = 3;                    // number of messages of the final size, >= 1
  double message_seconds = 0.03;           // intended duration of one of them
  int64_t least_bytes = int64_t{1} << 16;  // size of the first message; each larger one is at most 4 times as large
  int64_t most_bytes = int64_t{8} << 20;   // largest size; growth ends earlier if a message takes message_seconds
};

// Results of a measurement, equal on all ranks.
struct LinkRates {
  LinkCost cost;
  int64_t message_bytes = 0;       // final size of the messages
  int64_t payload_bytes_sent = 0;  // by each rank that has peers
};

// Measures the cost of a link. A collective; nothing else may be in flight. Needs a backend for CPU tensors.
//
// All ranks that have peers send at once, so that ranks of a node share its NIC as in an all-reduce. The results are
// those of the slowest rank:
//   - seconds_per_hop: half the median round trip of 16 bytes.
//   - seconds_per_byte: median of the largest messages, each sent to one peer while one arrives from the other. The
//     smaller messages before them use up the burst of a token bucket.
// Takes some 0.1 s on a network of 1 to 10 Gbit/s. Throws c10::DistBackendError if a peer or the network fails.
LinkRates measure_link(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::optional<LinkPeers>& peers,
                       const LinkEffort& effort = {});

// Half the median of `pings` round trips of 16 bytes, of the slowest rank, as in measure_link. A collective.
double measure_hop(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::optional<LinkPeers>& peers,
                   int64_t pings);

// The peers on other nodes with which a rank measures the link between nodes; empty for a rank that owns no segment.
// Each node sends to the node that is half of all nodes further.
std::optional<LinkPeers> peers_between_nodes(const node::NodeLayout& layout, int64_t rank);

// Costs between nodes while all ranks that own a segment (NodeLayout) send at once, and within a node while all its
// ranks send. Empty if there is only one node, or if no two ranks share a node.
struct Link {
  std::optional<LinkCost> between_nodes;
  std::optional<LinkCost> within_node;
};

// Payload bytes that this rank has sent over the group for measurements, of links and of exchanges. Hooks do not count
// them, because they contain no gradients. Thread-safe.
int64_t measuring_bytes_sent(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace narrowcast::collectives

namespace narrowcast {
namespace NARROWCAST_EXPORT collectives {

// Measures the link on the first call: a collective, like measure_link, or like measure_link_on_stream (stream_link.h)
// if `device` is not the CPU. The result is kept for that layout as long as the group lives. Each node sends to the
// node that is half of all nodes further: if every rank is taken for a node, neighbours may share a machine.
std::shared_ptr<const Link> find_link(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                      const node::NodeLayout& layout, at::Device device = at::kCPU);

// Adds to measuring_bytes_sent. Thread-safe.
void count_measuring_bytes(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int64_t bytes);

}  // namespace collectives
}  // namespace narrowcast
