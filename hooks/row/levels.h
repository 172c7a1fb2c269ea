// Over which nodes a hook exchanges, in how many levels (hook_options.h), and what sending between them costs.
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

// A collective: the nodes of the group, for a hook with these options; all ranks get the same, found
// once for each group. One level, the flat layout without memory, where the options say so, where no two ranks share a
// node or can have memory in common (FoundNodes::why_flat says why), and for groups that move tensors on GPUs by
// something else than NCCL, or none on the CPU beside, by which ranks are found.
//
// c10::ValueError on all ranks if WireOptions::levels or node_size asks for two levels and there cannot be two, and
// where groups could have two also if an option of the kinds kLevels, kLink or kChoice differs between ranks: it names
// the first that differs from rank 0's.
std::shared_ptr<const node::FoundNodes> find_hook_nodes(const HookOptions& options);

// A collective: the groups over which a hook exchanges buckets on a GPU in two levels, of its own, as the order of a
// communicator's collectives is that of a hook. Null for one level, and where the group moves no tensors on GPUs.
std::shared_ptr<const collectives::StreamGroups> make_stream_groups(const HookOptions& options,
                                                                    const node::NodeLayout& layout);

// What CommHook::nodes says of them.
std::string nodes_text(const node::FoundNodes& found);

// Whether the options say that there be two levels, and one is an error.
bool asks_for_two_levels(const WireOptions& wire);

// What find_hook_nodes would find, as far as the options alone say it: the layout for a node size, else one level.
node::NodeLayout expected_layout(const WireOptions& wire, int64_t world_size);

// The layout in a hook's saved state, "nodes": int64 [W], by rank its node; absent where every rank is a node.
void add_nodes(HookState& state, const node::NodeLayout& layout);

// That of the ranks which left the state. Throws CorruptInputError for what is none.
node::NodeLayout saved_nodes(const FormerRanks& saved);

// A link in a hook's saved state, under that name: float64 [2], seconds per hop and per byte; none where there is none.
void add_link(HookState& state, const char* name, const std::optional<collectives::LinkCost>& link);

// Nothing where the state has none of that name. Throws CorruptInputError for what is none.
std::optional<collectives::LinkCost> saved_link(const HookState& saved, const char* name);

// Whether the options say all of the link between nodes, so that nothing needs to be measured.
inline bool gives_link(const WireOptions& wire) { return wire.link_gbit && wire.link_us; }

// `link` with what the options say in its place: of a rank's share of its node's card.
collectives::LinkCost with_given_link(collectives::LinkCost link, const WireOptions& wire,
                                      const node::NodeLayout& layout);

// The link over which ranks exchange with that layout: as the options say, and else as measured, a collective then,
// once for each group, by messages on GPUs where the group moves those by NCCL. Where it moves them by something else
// nothing is measured: what the options leave open is LinkCost::of_gpus, and nothing is known within a node.
collectives::Link find_hook_link(const HookOptions& options, const node::NodeLayout& layout);

// The link between nodes of a hook whose arrays go in one hop or in two by what sending costs. With up to two nodes one
// hop is best on any link, so that there is none to know.
class RouteLink {
 public:
  // None.
  RouteLink() = default;
  // A collective from three nodes on, as find_hook_link.
  RouteLink(const HookOptions& options, const node::NodeLayout& layout);

  collectives::LinkCost cost() const { return cost_.value_or(collectives::LinkCost{}); }

  // In a hook's saved state as "link" (add_link), beside the nodes. The route decides how numbers are rounded, so that
  // a hook goes on with what it has measured before, but for what its options say: resume comes before the first
  // bucket, and takes nothing from a state of other nodes.
  void add_to(HookState& state) const;
  void resume(const FormerRanks& saved);

 private:
  std::optional<collectives::LinkCost> cost_;
  WireOptions given_;
  node::NodeLayout layout_ = node::NodeLayout::flat(1);
};

}  // namespace narrowcast::hooks
