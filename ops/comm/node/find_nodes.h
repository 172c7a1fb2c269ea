// How the ranks of a group find out which of them share a node.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include "ops/comm/node/node_layout.h"
#include "ops/comm/node/node_memory.h"

namespace narrowcast::node {

// What was found, the same on all ranks but for the memory.
struct FoundNodes {
  NodeLayout layout = NodeLayout::flat(1);
  std::shared_ptr<NodeMemory> memory = nullptr;  // This rank's node has it; null where no two ranks share one.
  std::string why_flat = {};  // Where ranks of a node could not have memory in common: which, and what the system said.
  NodeLayout neighbours = NodeLayout::flat(1);  // Ranks that could reach each other locally, with memory or without.

  // So many ranks, each by itself, which did not ask each other.
  static std::shared_ptr<const FoundNodes> flat(int64_t world_size) {
    return std::make_shared<const FoundNodes>(
        FoundNodes{.layout = NodeLayout::flat(world_size), .neighbours = NodeLayout::flat(world_size)});
  }
};

// A collective; needs a backend for CPU tensors. Ranks are on one node if they run as the same user, are in the same
// network namespace, and so share their cards, and can have memory in common. With `node_size` >= 1 every so many
// consecutive ranks are taken for a node; c10::ValueError on all ranks if two of one such node can have no memory in
// common. c10::DistBackendError if a peer or the network fails.
//
// What was found is kept, with its memory, as long as the group lives (PerGroup), and found again at no cost. After an
// exchange that failed in a node's memory, later ones of its ranks fail, too: the group is not usable any more, as
// after a failure of the network.
NARROWCAST_EXPORT std::shared_ptr<const FoundNodes> find_nodes(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                               std::optional<int64_t> node_size = std::nullopt);

}  // namespace narrowcast::node
