// How the ranks of a group find out which of them share a node.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include "ops/node/node_layout.h"
#include "ops/node/node_memory.h"

namespace narrowcast::node {

// What was found, the same on all ranks but for the memory.
struct FoundNodes {
  NodeLayout layout = NodeLayout::flat(1);
  std::shared_ptr<NodeMemory> memory = nullptr;  // Of this rank's node; null where no two ranks share one.
  std::string why_flat = {};  // Where ranks of a node could not have memory in common: which, and what the system said.
};

// A collective; needs a backend for CPU tensors. Ranks are on one node if they run as the same user, are in the same
// network namespace, and so share their cards, and can have memory in common. With `node_size` >= 1 every so many
// consecutive ranks are taken for a node; c10::ValueError on all ranks if two of one such node can have no memory in
// common. c10::DistBackendError if a peer or the network fails.
//
// What was found is kept, with its memory, as long as the group lives, and found again at no cost: a group does not
// tell when it is destroyed, so that the next call for any group frees what those that are gone had. After an exchange
// that failed in a node's memory, later ones of its ranks fail, too: the group is not usable any more, as after a
// failure of the network.
NARROWCAST_EXPORT std::shared_ptr<const FoundNodes> find_nodes(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                               std::optional<int64_t> node_size = std::nullopt);

}  // namespace narrowcast::node
