// Memory that the ranks of each node map for data that live longer than an exchange.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include <narrowcast/export.h>
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::collectives {

struct NodeShareOptions {
  // In bytes.
  struct Range {
    int64_t begin = 0;
    int64_t size = 0;
  };
  std::string name = {};                                    // The call's name in errors.
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;  // Must have memory, also on a rank that is alone.
  int64_t bytes = 0;                                        // > 0; the same on all ranks of a node.
  std::vector<Range> own = {};  // This rank allocates these parts, near its processor. Together all ranks need all.
};

// A collective: the node's first rank makes memory of zeros, and the others of the node map it, each in its own place.
// The memory is freed when the last rank has dropped its pointer or ended. It has no name and no place in /dev/shm.
// Throws c10::ValueError naming a rank, on all ranks of the group, if a rank cannot have it, for instance because the
// machine has less memory available. Throws c10::DistBackendError if a peer fails.
NARROWCAST_EXPORT std::shared_ptr<std::byte> share_on_node(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                           const NodeShareOptions& options);

}  // namespace narrowcast::collectives
