// Over which nodes a hook exchanges.
#pragma once

#include <memory>

#include <narrowcast/hook_options.h>
#include "ops/node/find_nodes.h"

namespace narrowcast::hooks {

// A collective: the nodes of the group, for a hook of wire formats with these options; all ranks get the same, found
// once for each group. One level, the flat layout without memory, where the options say so, where no two ranks share a
// node or can have memory in common (FoundNodes::why_flat says why), and for groups that move tensors on GPUs: their
// gradients are averaged in one level so far.
//
// c10::ValueError on all ranks if WireOptions::levels or node_size asks for two levels and there cannot be two.
std::shared_ptr<const node::FoundNodes> find_hook_nodes(const HookOptions& options);

// What find_hook_nodes would find, as far as the options alone say it: the layout for a node size, else one level.
node::NodeLayout expected_layout(const WireOptions& wire, int64_t world_size);

}  // namespace narrowcast::hooks
