// The nodes of a group: which ranks share a NIC, and the plan of a hierarchical exchange (two levels).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/export.h>

namespace narrowcast::node {

// The nodes of a group. Ranks of one node add up their arrays in shared memory, and only sums are sent between nodes.
// An array is divided into as many segments as the smallest node has ranks. On every node, local rank s owns segment s.
// The owner sums the segment over the node's ranks, and exchanges it with the owners on the other nodes. Nodes may have
// unequal numbers of ranks; ranks beyond the smallest number own no segment.
class NARROWCAST_EXPORT NodeLayout {
 public:
  // `node_of_rank`: for each rank, any number that identifies its node. There must be at least one rank.
  explicit NodeLayout(const std::vector<int64_t>& node_of_rank);

  // Every rank is a node, so the exchange has one level.
  static NodeLayout flat(int64_t world_size) { return of_size(world_size, 1); }

  // Every `node_size` >= 1 consecutive ranks are a node; the last one may have fewer.
  static NodeLayout of_size(int64_t world_size, int64_t node_size);

  int64_t world_size() const { return static_cast<int64_t>(node_of_rank_.size()); }

  // Nodes are numbered in the order of their first ranks.
  int64_t nodes() const { return static_cast<int64_t>(ranks_.size()); }
  int64_t node_of(int64_t rank) const { return node_of_rank_.at(rank); }
  const std::vector<int64_t>& node_of_rank() const { return node_of_rank_; }

  // In ascending order.
  const std::vector<int64_t>& ranks_of(int64_t node) const { return ranks_.at(node); }

  // The index of a rank among the ranks of its node.
  int64_t local_rank_of(int64_t rank) const;

  // >= 1.
  int64_t segments() const { return segments_; }

  // The owners of that segment, by node.
  std::vector<int64_t> owners_of(int64_t segment) const;

  // Returns whether any ranks share a node.
  bool has_levels() const { return nodes() < world_size(); }

  // "2 x 4" for two nodes of four ranks, "3 + 1" for nodes that differ.
  std::string text() const;

  bool operator==(const NodeLayout& other) const { return node_of_rank_ == other.node_of_rank_; }

 private:
  std::vector<int64_t> node_of_rank_;
  std::vector<std::vector<int64_t>> ranks_;  // By node.
  int64_t segments_ = 0;
};

}  // namespace narrowcast::node
