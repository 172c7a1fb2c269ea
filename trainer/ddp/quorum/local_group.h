// Ranks that average their gradients in each step, and so must take the same steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include <narrowcast/process_group.h>
#include "hooks/table/post_local_sgd.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast {

// This rank's group among all ranks. Its first rank, the one with the lowest number, decides for the others.
class LocalGroup {
 public:
  // A collective of all ranks of `all`. `groups`: the number of each rank's group; empty: each rank is alone. Throws
  // c10::DistBackendError if a peer fails.
  LocalGroup(const ProcessGroupPtr& all, const std::vector<int64_t>& groups);

  // Whether this rank decides.
  bool is_first() const;
  // The first ranks of all groups, by the numbers of the groups.
  std::vector<int64_t> first_ranks() const;

  // A collective of this group, not of all ranks: returns the first rank's value. `step` names it in errors. Sends
  // nothing in a group of one rank. Throws c10::DistBackendError if a rank of the group fails.
  int64_t from_first(int64_t value, const char* step) const;
  // The same for a tensor of the same sizes, dtype and device on all ranks of the group.
  at::Tensor from_first(const at::Tensor& values, const char* step) const;

  // The same call: returns the values of all ranks of the group, [ranks, n] on the CPU, in their order. `values`: [n]
  // on the CPU, of the same dtype and size on all of them.
  at::Tensor gather(const at::Tensor& values, const char* step) const;

  // Whether the group has more than one rank.
  bool has_others() const { return part_ && part_->group(); }
  const node::NodeLayout& layout() const { return groups_; }

 private:
  const int64_t rank_;
  const node::NodeLayout groups_;
  std::optional<hooks::GroupPart> part_ = {};  // empty if all ranks are alone
};

}  // namespace narrowcast
