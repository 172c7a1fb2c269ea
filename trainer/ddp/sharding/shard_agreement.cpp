#include "trainer/ddp/sharding/shard_agreement.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <narrowcast/network_errors.h>
#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/comm/groups/agree.h"
#include "trainer/ddp/sharding/shared_parameters.h"
#include "trainer/ddp/shards/copy_exchange.h"

namespace narrowcast::sharding {
namespace {

void check_parameter(const at::Tensor& parameter, size_t index) {
  TORCH_CHECK_VALUE(parameter.is_cpu(), "parameter ", index, " of the optimizer is on ", parameter.device(),
                    ", but must be on the CPU: a sharded optimizer moves float32 numbers of the CPU's memory");
  TORCH_CHECK_VALUE(parameter.scalar_type() == at::kFloat, "parameter ", index, " of the optimizer is ",
                    parameter.scalar_type(), ", but must be float32");
  TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), "parameter ", index, " of the optimizer, of sizes ",
                    parameter.sizes(), " and strides ", parameter.strides(), ", has holes or overlaps in memory");
}

void check_request(const ShardRequest& request) {
  const auto node_size = request.options.node_size();
  const int64_t copies = request.options.copies();
  TORCH_CHECK_VALUE(node_size.value_or(1) >= 1, "node_size: must be at least 1, but is ", *node_size);
  TORCH_CHECK_VALUE(copies == 1 || copies == 2, "copies: must be 1 or 2, but is ", copies);
  TORCH_CHECK_VALUE(copies == 1 || request.options.parameter_format() != WireFormat::kFp16,
                    "copies: 2 copies need a parameter_format other than fp16, in which large averages are infinite");
  check_parameter_format(request.options.parameter_format());
  TORCH_CHECK_VALUE(!request.parameters.empty(), "the optimizer has no parameter that requires a gradient");
  for (size_t i = 0; i < request.parameters.size(); ++i) {
    check_parameter(request.parameters[i], i);
    if (!request.options.share_parameters()) {
      check_is_not_shared(request.parameters[i], "a ShardedOptimizer without share_parameters",
                          c10::str("parameter ", i, " of the optimizer"));
    }
  }
}

std::vector<NamedValue> compared_values(const ShardRequest& request) {
  const auto node_size = request.options.node_size();
  std::vector<NamedValue> values = request.values;
  values.push_back({"the hook of the shards", request.hook ? request.hook->name : "none"});
  values.push_back({"whole_parameters", request.options.whole_parameters() ? "true" : "false"});
  values.push_back({"share_parameters", request.options.share_parameters() ? "true" : "false"});
  values.push_back({"node_size", node_size ? c10::str(*node_size) : "not set"});
  values.push_back({"copies", c10::str(request.options.copies())});
  values.push_back({"the number of parameters", c10::str(request.parameters.size())});
  for (size_t i = 0; i < request.parameters.size(); ++i) {
    const at::Tensor& parameter = request.parameters[i];
    values.push_back({c10::str("parameter ", i), c10::str(parameter.sizes(), " with strides ", parameter.strides(),
                                                          " in group ", request.groups[i])});
    if (!request.costs.empty()) {
      values.push_back({c10::str("the cost of a step of parameter ", i), c10::str(request.costs[i])});
    }
  }
  return values;
}

}  // namespace

void check_parameter_format(const std::optional<WireFormat>& format) {
  TORCH_CHECK_VALUE(!format || !codec::wire::is_sparse(*format), "parameter_format: ", *format,
                    " would send most parameters only after many steps");
}

ShardRequest agree_on_shards(const ProcessGroupPtr& group, const std::function<ShardRequest()>& read) {
  TORCH_CHECK_VALUE(group->getSize() > 1, "an optimizer cannot be sharded in a group of one rank");
  ShardRequest request;
  const auto check = [&] {
    request = read();
    check_request(request);
  };
  collectives::agree(group, {.call = "ShardedOptimizer", .refusal = collectives::refusal_of(check)});
  check_equal_on_all_ranks(group, compared_values(request));
  return request;
}

std::shared_ptr<const node::FoundNodes> find_shared_nodes(const ProcessGroupPtr& group,
                                                          std::optional<int64_t> node_size) {
  auto nodes = with_network_errors(group->getRank(), "finding the ranks of each node",
                                   [&] { return node::find_nodes(group, node_size); });
  TORCH_CHECK_VALUE(nodes->layout.has_levels(), "an optimizer cannot be sharded within nodes, because ",
                    nodes->why_flat.empty() ? "every node has one rank" : nodes->why_flat);
  return nodes;
}

namespace {

// By rank, the rank with the copy of its shard. Empty if there is one copy.
std::vector<int64_t> holders_of_copies(const ProcessGroupPtr& group, const hooks::WireOptions& wire,
                                       const node::NodeLayout& layout, const ShardOptions& options) {
  return options.copies() == 1 ? std::vector<int64_t>()
                               : copy_holders(find_nodes_of_copies(group, wire.node_size), layout);
}

}  // namespace

node::NodeLayout find_nodes_of_copies(const ProcessGroupPtr& group, std::optional<int64_t> node_size) {
  const node::NodeLayout neighbours = with_network_errors(group->getRank(), "finding the ranks of each node", [&] {
                                        return node::find_nodes(group);
                                      })->neighbours;
  const bool simulates_nodes = node_size && neighbours.nodes() == 1;
  return simulates_nodes ? node::NodeLayout::of_size(group->getSize(), *node_size) : neighbours;
}

// One level exchanges any shards. It is needed if the hook has other nodes. It is also needed for whole parameters,
// because ranks without a segment own some of them.
HookShards average_shards(const ProcessGroupPtr& group, const ShardingHook& hook, const ShardOptions& options) {
  const bool is_flat = options.whole_parameters() || hook.wire.levels == Levels::kOne;
  auto nodes = is_flat ? node::FoundNodes::flat(group->getSize())
                       : with_network_errors(group->getRank(), "finding the ranks of each node",
                                             [&] { return node::find_nodes(group, hook.wire.node_size); });
  if (options.whole_parameters()) {
    return {nodes, nodes->layout, holders_of_copies(group, hook.wire, nodes->layout, options)};
  }
  const auto rounding = differences_of(options) ? hooks::ShardRounding::kOnce : hooks::ShardRounding::kAsWhole;
  const std::vector<int64_t> node_of_rank = hook.average_shards(rounding);
  check_equal_on_all_ranks(group, {{"the nodes of the hook's shards", c10::str(node_of_rank)}});
  TORCH_CHECK_VALUE(node_of_rank.empty() || std::ssize(node_of_rank) == group->getSize(), "hook ", hook.name,
                    " averages shards of ", node_of_rank.size(), " ranks, but there are ", group->getSize());
  node::NodeLayout layout = node_of_rank.empty() ? nodes->layout : node::NodeLayout(node_of_rank);
  if (!(layout == nodes->layout)) {
    nodes = node::FoundNodes::flat(group->getSize());
  }
  std::vector<int64_t> holders = holders_of_copies(group, hook.wire, layout, options);
  return {std::move(nodes), std::move(layout), std::move(holders)};
}

std::optional<WireFormat> differences_of(const ShardOptions& options) {
  const WireFormat format = options.parameter_format().value_or(kDefaultParameterFormat);
  return format == WireFormat::kFp32 ? std::nullopt : std::optional(format);
}

void check_buckets(const std::vector<at::Tensor>& parameters, const std::vector<std::vector<at::Tensor>>& buckets,
                   const ShardOptions& options) {
  std::unordered_set<const at::TensorImpl*> left;
  for (const std::vector<at::Tensor>& bucket : buckets) {
    for (const at::Tensor& parameter : bucket) {
      left.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    TORCH_CHECK_VALUE(left.erase(parameters[i].unsafeGetTensorImpl()) == 1, "parameter ", i,
                      " of the optimizer, of sizes ", parameters[i].sizes(),
                      ", is none of those whose gradients are averaged");
  }
  TORCH_CHECK_VALUE(left.empty() || options.whole_parameters(), "gradients of ", left.size(),
                    " parameters are averaged that the optimizer does not have; an optimizer that is sharded over all "
                    "ranks needs all of them");
}

std::vector<Shard> cut(const std::vector<at::Tensor>& parameters, int64_t count, const ShardOptions& options,
                       const std::vector<int64_t>& costs) {
  std::vector<int64_t> numels;
  for (const at::Tensor& parameter : parameters) {
    numels.push_back(parameter.numel());
  }
  return options.whole_parameters() ? cut_whole(numels, count, costs) : cut_pieces(numels, count);
}

int64_t largest_shard(const std::vector<at::Tensor>& parameters, const node::NodeLayout& layout,
                      const ShardOptions& options) {
  int64_t largest = 0;
  for (int64_t node = 0; node < layout.nodes(); ++node) {
    for (const Shard& shard : cut(parameters, std::ssize(layout.ranks_of(node)), options)) {
      largest = std::max(largest, elements_of(shard));
    }
  }
  return largest;
}

}  // namespace narrowcast::sharding
