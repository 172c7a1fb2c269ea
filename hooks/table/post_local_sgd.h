// "post_local_sgd": averages gradients first over all ranks, and later only in groups.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>
#include "hooks/row/hook_row.h"
#include "ops/comm/groups/broken_groups.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::hooks {

// Splits the ranks of a group into parts and makes a group for this rank's part. The new group has the same devices,
// kinds of backends and options. Its ranks destroy it when none of them sends anything more.
class NARROWCAST_EXPORT GroupPart {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // A collective of all ranks of `all`; the parts are the nodes of `parts`. Ranks find each other in the store of
  // `all`, each time under new keys. c10::DistBackendError naming this rank if a peer or the network fails.
  GroupPart(const Group& all, const node::NodeLayout& parts);
  GroupPart(const GroupPart&) = delete;
  GroupPart& operator=(const GroupPart&) = delete;

  // The group of this rank's part; null if the part has one rank.
  const Group& group() const { return group_.group(); }

 private:
  collectives::SplitGroup group_;
};

// PyTorch's post_localSGD_hook, with LocalOptions. The first `start` iterations (backward passes that reduce) average
// over all ranks, later ones over this rank's group. In a group of one rank a bucket stays unchanged. The caller must
// average parameters from time to time: OuterOptimizer.
class PostLocalSgdHook final : public TableHook {
 public:
  // A collective: finds the nodes if they are the groups, and makes the groups and the inner hooks.
  PostLocalSgdHook(const HookRow& row, const HookOptions& options);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

  // The number of iterations, at most `start`, the groups, and the states of both hooks. If the groups change, the hook
  // inside them starts without state.
  HookState state(const std::vector<NamedParameter>& parameters) const override;
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override;
  void rescale_state(double factor) override;

  // Holds at present. The row's value is false, because the replicas will diverge.
  bool keeps_replicas_equal() const override { return iteration_ < options_.start; }
  std::vector<int64_t> groups() const override { return groups_.node_of_rank(); }
  std::string decision() const override;

 private:
  // The hook of the next bucket; null if nothing is sent.
  CommHook* hook() const { return iteration_ < options_.start ? global_.get() : local_.get(); }

  const LocalOptions options_;
  const node::NodeLayout groups_;
  const GroupPart part_;                    // this rank's group
  const std::unique_ptr<CommHook> global_;  // null if `start` is 0
  const std::unique_ptr<CommHook> local_;   // null if the rank is alone in its group
  int64_t iteration_ = 0;                   // up to `start`
};

// The groups, according to the options and the nodes.
NARROWCAST_EXPORT node::NodeLayout local_groups(const LocalOptions& options, const node::NodeLayout& nodes);

// A collective: the groups of a hook with these options.
NARROWCAST_EXPORT node::NodeLayout find_local_groups(const HookOptions& options);

// The row of post_local_sgd for the table.
HookRow post_local_sgd_row();

}  // namespace narrowcast::hooks
