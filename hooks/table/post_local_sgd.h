// "post_local_sgd": gradients are averaged over all ranks at first, and then in groups only.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/row/hook_row.h"
#include "ops/comm/groups/broken_groups.h"
#include "ops/comm/node/node_layout.h"

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
  GroupPart(const GroupPart&) = delete;
  GroupPart& operator=(const GroupPart&) = delete;

  // The group of this rank's part; null if it is alone in it.
  const Group& group() const { return group_.group(); }

 private:
  collectives::SplitGroup group_;
};

// PyTorch's post_localSGD_hook, with LocalOptions: the first `start` iterations (backward passes that reduce) are
// averaged over all ranks, later ones over this rank's group, by its size; with a group of one a bucket stays as it is.
// Whoever trains with it averages parameters from time to time: OuterOptimizer.
class PostLocalSgdHook final : public TableHook {
 public:
  // A collective: finds the nodes if they are the groups, makes the groups, and the hooks that exchange in them.
  PostLocalSgdHook(const HookRow& row, const HookOptions& options);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

  // The iterations so far, up to `start`, the groups, and the states of both hooks. In other groups the hook inside
  // them begins anew.
  HookState state(const std::vector<NamedParameter>& parameters) const override;
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override;
  void rescale_state(double factor) override;

  // For now: the row says that they will not stay equal.
  bool keeps_replicas_equal() const override { return iteration_ < options_.start; }
  std::vector<int64_t> groups() const override { return groups_.node_of_rank(); }
  std::string decision() const override;

 private:
  // The hook of the next bucket; null where nothing is exchanged.
  CommHook* hook() const { return iteration_ < options_.start ? global_.get() : local_.get(); }

  const LocalOptions options_;
  const node::NodeLayout groups_;
  const GroupPart part_;                    // this rank's group
  const std::unique_ptr<CommHook> global_;  // null where `start` is 0
  const std::unique_ptr<CommHook> local_;   // null for a rank alone in its group
  int64_t iteration_ = 0;                   // up to `start`
};

// The groups, as far as the options and the nodes say.
node::NodeLayout local_groups(const LocalOptions& options, const node::NodeLayout& nodes);

// A collective: the groups that a hook with these options has.
node::NodeLayout find_local_groups(const HookOptions& options);

// What the table knows of it.
HookRow post_local_sgd_row();

}  // namespace narrowcast::hooks
