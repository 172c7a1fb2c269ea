#include "hooks/levels.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "ops/backend_errors.h"
#include "ops/collectives/group.h"

namespace narrowcast::hooks {
namespace {

using node::FoundNodes;
using node::NodeLayout;

constexpr const char* kNodes = "nodes";

// Why the group itself allows one level only; empty if it allows two.
std::string why_group_is_flat(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  if (!collectives::moves_tensors_on(at::kCUDA, group)) {
    return {};
  }
  if (!collectives::moves_cpu_tensors(group)) {
    return "the process group has no backend for CPU tensors, by which ranks find out who shares a node";
  }
  return collectives::gpu::group_maker(group) ? ""
                                              : "the process group moves tensors on GPUs by something else than NCCL";
}

// What a rank was told of nodes: a Levels, and a node size or 0.
at::Tensor told_of_nodes(const WireOptions& wire) {
  return at::tensor({static_cast<int64_t>(wire.levels), wire.node_size.value_or(0)}, at::kLong);
}

std::string told_text(const at::Tensor& told) {
  const auto levels = static_cast<Levels>(told[0].item<int64_t>());
  const auto node_size = told[1].item<int64_t>();
  return c10::str(to_string(levels), " and ", node_size == 0 ? "none" : std::to_string(node_size));
}

// A collective. Else ranks would wait in a search, or in an exchange, for others that take no part.
void compare_levels(const HookOptions& options) {
  const auto& group = options.process_group;
  const at::Tensor told = with_backend_errors(group->getRank(), "comparing levels and node_size", [&] {
    return collectives::all_gather_rows(group, told_of_nodes(options.wire));
  });
  for (int64_t rank = 1; rank < told.size(0); ++rank) {
    TORCH_CHECK_VALUE(told[rank].equal(told[0]), "levels and node_size differ between ranks: rank 0 has ",
                      told_text(told[0]), ", rank ", rank, " has ", told_text(told[rank]));
  }
}

}  // namespace

bool asks_for_two_levels(const WireOptions& wire) {
  return wire.levels == Levels::kTwo || wire.node_size.value_or(1) > 1;
}

std::shared_ptr<const FoundNodes> find_hook_nodes(const HookOptions& options) {
  const WireOptions& wire = options.wire;
  const int64_t world_size = options.process_group->getSize();
  if (const std::string why = why_group_is_flat(options.process_group); !why.empty()) {
    TORCH_CHECK_VALUE(!asks_for_two_levels(wire), "levels: there cannot be two, as ", why);
    return FoundNodes::flat(world_size);
  }
  if (world_size > 1) {
    compare_levels(options);
  }
  if (wire.levels == Levels::kOne) {
    return FoundNodes::flat(world_size);
  }
  auto found = node::find_nodes(options.process_group, wire.node_size);
  TORCH_CHECK_VALUE(wire.levels != Levels::kTwo || found->layout.has_levels(), "levels: two, but ",
                    found->why_flat.empty() ? "every node has one rank" : found->why_flat);
  return found;
}

std::shared_ptr<const collectives::StreamGroups> make_stream_groups(const HookOptions& options,
                                                                    const NodeLayout& layout) {
  if (!layout.has_levels() || !collectives::moves_tensors_on(at::kCUDA, options.process_group)) {
    return nullptr;
  }
  return std::make_shared<collectives::StreamGroups>(options.process_group, layout,
                                                     collectives::gpu::group_maker(options.process_group));
}

NodeLayout expected_layout(const WireOptions& wire, int64_t world_size) {
  return NodeLayout::of_size(world_size, wire.levels == Levels::kOne ? 1 : wire.node_size.value_or(1));
}

void add_nodes(HookState& state, const NodeLayout& layout) {
  if (!layout.has_levels()) {
    return;
  }
  state[kNodes] = at::tensor(layout.node_of_rank(), at::kLong);
}

NodeLayout saved_nodes(const FormerRanks& saved) {
  const auto found = saved.own().find(kNodes);
  if (found == saved.own().end()) {
    return NodeLayout::flat(saved.world_size);
  }
  const at::Tensor& nodes = found->second;
  NARROWCAST_CHECK_INPUT(nodes.scalar_type() == at::kLong && nodes.numel() == saved.world_size, "the hook's state '",
                         kNodes, "' is of ", nodes.numel(), " ranks, but there were ", saved.world_size);
  const at::Tensor numbers = nodes.cpu().contiguous();
  const auto* const begin = numbers.const_data_ptr<int64_t>();
  return NodeLayout(std::vector<int64_t>(begin, begin + numbers.numel()));
}

collectives::LinkCost with_given_link(collectives::LinkCost link, const WireOptions& wire, const NodeLayout& layout) {
  if (wire.link_gbit) {
    link.seconds_per_byte = collectives::LinkCost::seconds_per_byte_of(*wire.link_gbit, layout.segments());
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
