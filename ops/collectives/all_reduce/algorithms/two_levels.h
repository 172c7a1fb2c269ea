// Hierarchical all-reduce for ranks that share nodes: a reduce-scatter in each node's memory, an all-reduce of each
// segment between nodes, an all-gather in each node's memory. Mikami et al., "Massively Distributed SGD", 2018 (arXiv
// 1811.05233), have the same three phases for rows and columns of a torus.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/node/find_nodes.h"
#include "ops/comm/node/node_layout.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

// The elements of an array that a rank encodes and sends. Empty for a rank that owns no segment. With one level: all
// elements, and the rank's shard.
struct SentParts {
  ElementRange own;   // Sent in the first hop: this rank's values or, in two levels, the node's mean.
  ElementRange mean;  // Sent in the second hop, if there is one.
};

// Segment number `index` of an array of `numel` elements.
inline ElementRange segment_of(const node::NodeLayout& layout, int64_t index, int64_t numel) {
  return part_of({0, numel}, index, layout.segments(), cpu::kWireGrain);
}

// Number of elements of the largest segment.
inline int64_t largest_segment(const node::NodeLayout& layout, int64_t numel) {
  int64_t largest = 0;
  for (int64_t index = 0; index < layout.segments(); ++index) {
    largest = std::max(largest, segment_of(layout, index, numel).numel);
  }
  return largest;
}

inline SentParts sent_parts(const node::NodeLayout& layout, int64_t rank, int64_t numel) {
  const int64_t local_rank = layout.local_rank_of(rank);
  if (local_rank >= layout.segments()) {
    return {};
  }
  const ElementRange own = segment_of(layout, local_rank, numel);
  const ElementRange shard = shard_of(layout.node_of(rank), layout.nodes(), own.numel);
  return {own, {own.begin + shard.begin, shard.numel}};
}

// Weight of the mean of a node's g ranks: N g / W. With it the mean over N nodes equals the mean over W ranks.
inline double weight_of_node(const node::NodeLayout& layout, int64_t node) {
  return static_cast<double>(layout.nodes()) * static_cast<double>(layout.ranks_of(node).size()) /
         static_cast<double>(layout.world_size());
}

struct TwoLevelOptions {
  AllReduceOptions mean;  // Rank, size and array of the group's mean.
  std::shared_ptr<const node::FoundNodes> nodes;
  int64_t array = 0;  // The array's number in the node's memory.
  LinkCost link = {};
};

// With N nodes, W ranks, and S segments (NodeLayout):
// Before:  rank r holds its own array, cut into the same segments on every rank.
// start:   rank r copies its array except its own segment, in float32, to its staging buffer in the node's memory. So
//          does prepare, if it is called.
// advance: the owner of a segment waits for the ranks of its node. It replaces the segment by their mean, summed in
//          float32 in the order of ranks. If nodes differ in size, it multiplies the mean by weight_of_node. It then
//          exchanges the segment in one or two shots with its owners on the other nodes; while one chunk is being sent
//          the next one is averaged. The owner copies each finished chunk to its staging buffer and signals the node's
//          ranks. While the next chunk is being sent, it copies the chunks that other owners have finished.
// finish:  rank r copies all other chunks from their owners' staging buffers as they are published.
// After:   the owners of a segment have decoded the same bytes, and the ranks of a node have copied the decoded values.
// With one node nothing is sent, and only the float32 sums are rounded.
//
// If each rank gets its shard only, advance and finish end with the owner's part of the exchange between nodes.
//
// Residuals: an own residual covers the owner's segment and belongs to the node's mean.
std::unique_ptr<AllReduceExchange> make_two_levels(const TwoLevelOptions& options,
                                                   std::shared_ptr<MessageMemory> memory);

}  // namespace narrowcast::collectives
