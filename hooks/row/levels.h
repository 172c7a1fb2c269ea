// The nodes and levels over which a hook averages (hook_options.h), and the communication cost between nodes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "ops/collectives/all_reduce/stream/stream_groups.h"
#include "ops/comm/link/link.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::hooks {

// A collective: the nodes of the group, for a hook with these options. All ranks get the same layout. Nodes are found
// once for each group. The layout is flat (one level, without shared memory)
//  - if the options ask for one level;
//  - if no two ranks share a node or can have memory in common (FoundNodes::why_flat is the reason);
//  - if the gradients are on GPUs and the group moves those without NCCL, or has no backend for CPU tensors, which
//    finding nodes needs.
//
// If the options give WireOptions::connections, the group then has that number (connections::open_connections), or the
// number that its ranks choose.
//
// Throws c10::ValueError on all ranks if WireOptions::levels or node_size asks for two levels and two are not possible.
// If the group could have two levels, it also throws if an option of the kinds kLevels, kLink, kConnections or kChoice
// differs between ranks. The error names the first option that differs from rank 0's.
std::shared_ptr<const node::FoundNodes> find_hook_nodes(const HookOptions& options);

// A collective: the groups over which a hook averages buckets on a GPU in two levels. Each hook gets separate groups,
// because the collectives of a communicator must follow the order of one hook. Null for one level, and if the
// gradients are on the CPU.
std::shared_ptr<const collectives::StreamGroups> make_stream_groups(const HookOptions& options,
                                                                    const node::NodeLayout& layout);

// The text that CommHook::nodes returns.
std::string nodes_text(const node::FoundNodes& found);

// Whether the options require two levels, so that one level is an error.
bool asks_for_two_levels(const WireOptions& wire);

// The result of find_hook_nodes as far as it follows from the options alone: the layout of the node size, else one
// level.
node::NodeLayout expected_layout(const WireOptions& wire, int64_t world_size);

// Adds the layout to a hook's saved state as "nodes": int64 [W], the node of each rank. Adds nothing if every rank is a
// node.
void add_nodes(HookState& state, const node::NodeLayout& layout);

// The layout of the ranks that saved the state. Throws CorruptInputError if it is invalid.
node::NodeLayout saved_nodes(const FormerRanks& saved);

// Adds a link to a hook's saved state as `name`: float64 [2], seconds per hop and per byte. Adds nothing without a
// link.
void add_link(HookState& state, const char* name, const std::optional<collectives::LinkCost>& link);

// The saved link `name`; empty if the state does not have it. Throws CorruptInputError if it is invalid.
std::optional<collectives::LinkCost> saved_link(const HookState& saved, const char* name);

// The device whose messages are measured: the CPU, or this rank's GPU. Empty if the group moves GPU tensors without
// NCCL, because nothing is measured then.
std::optional<at::Device> measured_device(const HookOptions& options);

// Whether the options give all values of the link between nodes, so that nothing needs to be measured.
inline bool gives_link(const WireOptions& wire) { return wire.link_gbit && wire.link_us; }

// `link` with the values that the options give, for a rank's share of its node's NIC.
collectives::LinkCost with_given_link(collectives::LinkCost link, const WireOptions& wire,
                                      const node::NodeLayout& layout);

// The link over which ranks average with that layout. Values that the options do not give are measured. Measuring is a
// collective, done once for each group. It sends messages on GPUs if the gradients are there. If the group moves those
// without NCCL, nothing is measured: LinkCost::of_gpus stands for the missing values between nodes, and the link
// within a node stays unknown.
collectives::Link find_hook_link(const HookOptions& options, const node::NodeLayout& layout);

// The link between nodes, for a hook that sends arrays in one hop or in two, depending on the communication cost. With
// up to two nodes one hop is best on any link, so that no link is needed.
class RouteLink {
 public:
  // No link.
  RouteLink() = default;
  // With three nodes or more, a collective: find_hook_link. Else no link.
  RouteLink(const HookOptions& options, const node::NodeLayout& layout);

  collectives::LinkCost cost() const { return cost_.value_or(collectives::LinkCost{}); }

  // Adds the link (add_link) as "link" and the nodes to a hook's saved state. The route decides how numbers are
  // rounded, so a hook that resumes keeps the measured values, except those that its options give. Call resume before
  // the first bucket. It ignores a state of other nodes.
  void add_to(HookState& state) const;
  void resume(const FormerRanks& saved);

 private:
  std::optional<collectives::LinkCost> cost_;
  WireOptions given_;
  node::NodeLayout layout_ = node::NodeLayout::flat(1);
};

}  // namespace narrowcast::hooks
