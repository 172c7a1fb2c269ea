// Process groups of a part of another one's ranks, over which gradients go where not all ranks average theirs.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/node/node_layout.h"

namespace narrowcast::hooks {

// The ranks of a group are cut into parts, and those of each part have a group of their own. It moves tensors on the
// same devices by backends of the same kinds, with the same options. The ranks destroy it when none of them sends
// anything more.
class GroupPart {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // A collective of all ranks of `all`, whose parts are the nodes of `parts`. They find each other in the store of
  // `all`, each time under names of their own. c10::DistBackendError naming this rank if a peer or the network fails.
  GroupPart(const Group& all, const node::NodeLayout& parts);
  ~GroupPart();
  GroupPart(const GroupPart&) = delete;
  GroupPart& operator=(const GroupPart&) = delete;

  // The group of this rank's part; null if it is alone in it.
  const Group& group() const { return group_; }

 private:
  Group group_;
};

}  // namespace narrowcast::hooks
