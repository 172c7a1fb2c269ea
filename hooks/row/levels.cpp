#include "hooks/row/levels.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <string>

#include "hooks/row/execution.h"
#include "ops/comm/connections/group/connections.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"

namespace narrowcast::hooks {
namespace {

using collectives::LinkCost;
using node::FoundNodes;
using node::NodeLayout;

constexpr const char* kNodes = "nodes";
constexpr const char* kRouteLink = "link";

// The reason why the group itself allows one level only; empty if it allows two.
std::string why_group_is_flat(const HookOptions& options) {
  const c10::intrusive_ptr<c10d::ProcessGroup>& group = options.process_group;
  if (!averages_on_gpus(options)) {
    return {};
  }
  if (!collectives::moves_cpu_tensors(group)) {
    return "the process group has no backend for CPU tensors, which is needed to detect nodes";
  }
  return collectives::gpu::group_maker(group) ? "" : "the process group does not use NCCL for GPU tensors";
}

// A collective: compares the options that decide how a rank takes part in finding nodes and links, and on which path it
// sends. If they differed, ranks would wait in a search or an all-reduce for others that take no part.
void compare_between_ranks(const HookOptions& options) {
  collectives::Announcement own{.call = "comparing the levels of hooks"};
  for (const NamedOption& option : named_options({.wire = options.wire})) {
    if (option.kind == OptionKind::kLevels || option.kind == OptionKind::kLink ||
        option.kind == OptionKind::kConnections || option.kind == OptionKind::kChoice) {
      own.entries.push_back({option.name, text_of(option.value)});
    }
  }
  collectives::agree(options.process_group, own);
}

}  // namespace

bool asks_for_two_levels(const WireOptions& wire) {
  return wire.levels == Levels::kTwo || wire.node_size.value_or(1) > 1;
}

namespace {

std::shared_ptr<const FoundNodes> find_agreed_nodes(const HookOptions& options) {
  const WireOptions& wire = options.wire;
  const int64_t world_size = options.process_group->getSize();
  if (const std::string why = why_group_is_flat(options); !why.empty()) {
    TORCH_CHECK_VALUE(!asks_for_two_levels(wire), "levels: two is impossible, because ", why);
    return FoundNodes::flat(world_size);
  }
  if (world_size > 1) {
    compare_between_ranks(options);
  }
  if (wire.levels == Levels::kOne) {
    return FoundNodes::flat(world_size);
  }
  auto found = node::find_nodes(options.process_group, wire.node_size);
  node::check_levels(wire.levels, *found);
  return found;
}

}  // namespace

std::shared_ptr<const FoundNodes> find_hook_nodes(const HookOptions& options) {
  auto found = find_agreed_nodes(options);
  if (options.wire.connections && !averages_on_gpus(options)) {
    const bool is_chosen = options.wire.connections == kAutoConnections;
    connections::open_connections(options.process_group, is_chosen ? std::nullopt : options.wire.connections,
                                  found->layout);
  }
  return found;
}

std::string nodes_text(const FoundNodes& found) {
  return found.layout.text() + (found.why_flat.empty() ? "" : " (" + found.why_flat + ")");
}

std::shared_ptr<const collectives::StreamGroups> make_stream_groups(const HookOptions& options,
                                                                    const NodeLayout& layout) {
  if (!layout.has_levels() || !averages_on_gpus(options)) {
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
                         kNodes, "' has ", nodes.numel(), " ranks, but must have ", saved.world_size);
  const at::Tensor numbers = nodes.cpu().contiguous();
  const auto* const begin = numbers.const_data_ptr<int64_t>();
  return NodeLayout(std::vector<int64_t>(begin, begin + numbers.numel()));
}

void add_link(HookState& state, const char* name, const std::optional<LinkCost>& link) {
  if (link) {
    state.emplace(name, at::tensor({link->seconds_per_hop, link->seconds_per_byte}, at::kDouble));
  }
}

std::optional<LinkCost> saved_link(const HookState& saved, const char* name) {
  const auto found = saved.find(name);
  if (found == saved.end()) {
    return std::nullopt;
  }
  const at::Tensor& tensor = found->second;
  NARROWCAST_CHECK_INPUT(tensor.scalar_type() == at::kDouble && tensor.numel() == 2 &&
                             (tensor > 0).logical_and(tensor.isfinite()).all().item<bool>(),
                         "the hook's state '", name, "' must hold the seconds per hop and per byte");
  return LinkCost{tensor[0].item<double>(), tensor[1].item<double>()};
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

std::optional<at::Device> measured_device(const HookOptions& options) {
  if (!averages_on_gpus(options)) {
    return at::kCPU;
  }
  const c10::intrusive_ptr<c10d::ProcessGroup>& group = options.process_group;
  if (!collectives::gpu::group_maker(group)) {
    return std::nullopt;
  }
  const std::optional<at::Device> bound = group->getBackend(at::kCUDA)->getBoundDeviceId();
  return bound ? bound : c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
}

collectives::Link find_hook_link(const HookOptions& options, const NodeLayout& layout) {
  collectives::Link link;
  const std::optional<at::Device> device = measured_device(options);
  if (!gives_link(options.wire) && layout.world_size() > 1 && device) {
    link = *collectives::find_link(options.process_group, layout, *device);
  }
  if (layout.nodes() > 1) {
    const LinkCost unknown = device ? LinkCost{} : LinkCost::of_gpus(layout.segments());
    link.between_nodes = with_given_link(link.between_nodes.value_or(unknown), options.wire, layout);
  }
  return link;
}

RouteLink::RouteLink(const HookOptions& options, const NodeLayout& layout) : given_(options.wire), layout_(layout) {
  if (layout.nodes() > 2) {
    cost_ = find_hook_link(options, layout).between_nodes;
  }
}

void RouteLink::add_to(HookState& state) const {
  if (cost_) {
    add_link(state, kRouteLink, cost_);
    add_nodes(state, layout_);
  }
}

void RouteLink::resume(const FormerRanks& saved) {
  const auto link = saved_link(saved.own(), kRouteLink);
  if (cost_ && link && saved_nodes(saved) == layout_) {
    cost_ = with_given_link(*link, given_, layout_);
  }
}

}  // namespace narrowcast::hooks
