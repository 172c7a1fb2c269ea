#include "hooks/levels.h"

#include <c10/util/Exception.h>

#include "ops/collectives/group.h"

namespace narrowcast::hooks {
namespace {

using node::FoundNodes;
using node::NodeLayout;

std::shared_ptr<const FoundNodes> one_level(int64_t world_size) {
  return std::make_shared<const FoundNodes>(FoundNodes{.layout = NodeLayout::flat(world_size)});
}

bool asks_for_two(const WireOptions& wire) { return wire.levels == Levels::kTwo || wire.node_size.value_or(1) > 1; }

}  // namespace

std::shared_ptr<const FoundNodes> find_hook_nodes(const HookOptions& options) {
  const WireOptions& wire = options.wire;
  const int64_t world_size = options.process_group->getSize();
  if (wire.levels == Levels::kOne) {
    return one_level(world_size);
  }
  if (collectives::moves_tensors_on(at::kCUDA, options.process_group)) {
    TORCH_CHECK_VALUE(!asks_for_two(wire), "levels: gradients on GPUs are averaged in one level so far");
    return one_level(world_size);
  }
  auto found = node::find_nodes(options.process_group, wire.node_size);
  TORCH_CHECK_VALUE(wire.levels != Levels::kTwo || found->layout.has_levels(), "levels: two, but ",
                    found->why_flat.empty() ? "every node has one rank" : found->why_flat);
  return found;
}

NodeLayout expected_layout(const WireOptions& wire, int64_t world_size) {
  return NodeLayout::of_size(world_size, wire.levels == Levels::kOne ? 1 : wire.node_size.value_or(1));
}

collectives::LinkCost with_given_link(collectives::LinkCost link, const WireOptions& wire, const NodeLayout& layout) {
  if (wire.link_gbit) {
    link.seconds_per_byte = 8e-9 * static_cast<double>(layout.segments()) / *wire.link_gbit;
  }
  if (wire.link_us) {
    link.seconds_per_hop = 1e-6 * *wire.link_us;
  }
  return link;
}

collectives::Link find_hook_link(const HookOptions& options, const NodeLayout& layout) {
  collectives::Link link;
  if (!gives_link(options.wire) && layout.world_size() > 1 &&
      !collectives::moves_tensors_on(at::kCUDA, options.process_group)) {
    link = *collectives::find_link(options.process_group, layout);
  }
  if (layout.nodes() > 1) {
    link.between_nodes = with_given_link(link.between_nodes.value_or(collectives::LinkCost{}), options.wire, layout);
  }
  return link;
}

}  // namespace narrowcast::hooks
