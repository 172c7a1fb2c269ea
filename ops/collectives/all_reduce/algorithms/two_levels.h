// The mean where ranks share nodes: in the memory of each node first, then between nodes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/node/find_nodes.h"
#include "ops/comm/node/node_layout.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

// The elements of an array whose codes a rank sends; empty for ranks that own no segment. Of one level, all elements
// and the rank's shard of them.
struct SentParts {
  Segment own;   // It is sent in the first hop: of this rank's numbers or, in two levels, of its node's.
  Segment mean;  // It is sent in the second hop, if there is one.
};

// The segment with that index of an array of `numel` elements.
inline Segment segment_of(const node::NodeLayout& layout, int64_t index, int64_t numel) {
  return part_of({0, numel}, index, layout.segments(), cpu::kWireGrain);
}

// Elements of the largest segment.
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
  const Segment own = segment_of(layout, local_rank, numel);
  const Segment shard = shard_of(layout.node_of(rank), layout.nodes(), own.numel);
  return {own, {own.begin + shard.begin, shard.numel}};
}

// What the mean of a node's g ranks is multiplied by, so that the mean over N nodes is that over W ranks: N g / W.
inline double weight_of_node(const node::NodeLayout& layout, int64_t node) {
  return static_cast<double>(layout.nodes()) * static_cast<double>(layout.ranks_of(node).size()) /
         static_cast<double>(layout.world_size());
}

struct TwoLevelOptions {
  AllReduceOptions mean;  // What the group exchanges: rank, size, array.
  std::shared_ptr<const node::FoundNodes> nodes;
  int64_t array = 0;  // The memory's number for this array of a job.
  LinkCost link = {};
};

// With N nodes, W ranks, and S segments (NodeLayout):
// Before:  rank r holds its own array, cut into the same segments on every rank.
// start:   rank r copies its array, in float32, to its staging buffer in the node's memory, but for its own segment.
// advance: the owner of a segment waits for its node's ranks, replaces the segment by their mean, summed in float32 in
//          the order of ranks (where nodes differ in size, times the node's part of N / W: then the mean over nodes is
//          that over ranks), and exchanges it in one or two shots with the segment's owners on the other nodes: while
//          one chunk is on its way the next one is averaged. Once a chunk has come back the owner copies it to its
//          staging buffer and tells the node's ranks; as long as the next one is on its way, it takes theirs.
// finish:  rank r copies all other chunks from their owners' staging buffers as they come.
// After:   the owners of a segment have decoded the same bytes, and the ranks of a node copied what they decoded.
// With one node nothing is sent, and nothing rounded but float32 sums.
//
// Residuals: own ones are of the owner's segment, and belong to the node's mean.
std::unique_ptr<AllReduceExchange> make_two_levels(const TwoLevelOptions& options,
                                                   std::shared_ptr<MessageMemory> memory);

}  // namespace narrowcast::collectives
