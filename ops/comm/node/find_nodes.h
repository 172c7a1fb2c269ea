// Finds the ranks of a group that share a node.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include <narrowcast/levels.h>
#include "ops/comm/node/node_layout.h"
#include "ops/comm/node/node_memory.h"

namespace narrowcast::node {

// The result, equal on all ranks except the memory.
struct FoundNodes {
  NodeLayout layout = NodeLayout::flat(1);
  std::shared_ptr<NodeMemory> memory = nullptr;  // Memory of this rank's node; null if no two ranks share a node.
  // If ranks of a node could not share memory: the rank and the system's reason. The layout is flat then.
  std::string why_flat = {};
  // Nodes of ranks that could connect locally, with or without shared memory.
  NodeLayout neighbours = NodeLayout::flat(1);

  // The result for `world_size` ranks that are one node each, without communication.
  static std::shared_ptr<const FoundNodes> flat(int64_t world_size) {
    return std::make_shared<const FoundNodes>(
        FoundNodes{.layout = NodeLayout::flat(world_size), .neighbours = NodeLayout::flat(world_size)});
  }
};

// Frees the memory of nodes of groups that have ended. So does the next search for nodes.
void free_ended_groups();

}  // namespace narrowcast::node

namespace narrowcast {
namespace NARROWCAST_EXPORT node {

// A collective; needs a backend for CPU tensors. Ranks are on one node if they run as the same user in the same network
// namespace, and therefore share its NICs, and if they can share memory. With `node_size`, every `node_size`
// consecutive ranks are a node. Throws c10::ValueError on all ranks if `node_size` < 1, or if two ranks of such a node
// cannot share memory. Throws c10::DistBackendError if a peer or the network fails.
//
// The result is kept, with its memory, as long as the group lives (PerGroup); later calls return it without
// communication. After an exchange that failed in a node's memory, later exchanges of its ranks fail too. The group is
// then unusable, as after a failure of the network.
std::shared_ptr<const FoundNodes> find_nodes(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                             std::optional<int64_t> node_size = std::nullopt);

// Call it when this rank leaves the group after a failure: ranks of its node that wait for it in the node's memory
// fail, also while this process lives on. Does not wait for them. Does nothing if the group's nodes were never
// searched.
void leave_nodes(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// Throws c10::ValueError with the reason if an average over these nodes must have two levels, and can have only one.
void check_levels(Levels levels, const FoundNodes& found);

}  // namespace node
}  // namespace narrowcast
