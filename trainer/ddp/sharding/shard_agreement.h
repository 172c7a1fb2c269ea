// How ranks agree on the parameters that they shard, before anything is changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/consensus.h>
#include <narrowcast/hook_options.h>
#include <narrowcast/process_group.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/comm/node/find_nodes.h"
#include "ops/comm/node/node_layout.h"
#include "trainer/ddp/shards/shards.h"

namespace narrowcast::sharding {

// A hook over whose ranks an optimizer is sharded.
struct ShardingHook {
  std::string name;
  hooks::WireOptions wire;  // Its options.
  // CommHook::average_shards
  std::function<std::vector<int64_t>(std::optional<hooks::ShardRounding>)> average_shards;
  std::shared_ptr<const void> use = nullptr;  // Lives as long as the hook is used, if its owner wants to know it.
};

// A rank's arguments. All ranks must have the same, except the elements of the parameters.
struct ShardRequest {
  ShardOptions options = {};
  std::vector<at::Tensor> parameters = {};
  std::vector<size_t> groups = {};                  // By parameter, the index of its group.
  std::vector<int64_t> costs = {};                  // By parameter, the work of its step; empty: its elements.
  std::vector<NamedValue> values = {};              // Others, e.g. the kind of optimizer. Errors name them first.
  std::optional<ShardingHook> hook = std::nullopt;  // ParameterShards are over its ranks, instead of within nodes.
};

// Throws c10::ValueError for a sparse format, because differences of parameters have no error feedback.
void check_parameter_format(const std::optional<WireFormat>& format);

// The parameters of an optimizer that get gradients, each once, in the order of the groups. Throws c10::ValueError for
// an optimizer that cannot be sharded with these options.
ShardRequest shard_request(const torch::optim::Optimizer& optimizer, const ShardOptions& options);

// A collective: the request that `read` returns. Throws c10::ValueError on all ranks for a group of one rank, for an
// error of `read` or a wrong request on any rank, and if requests differ between ranks. c10::DistBackendError if a peer
// fails.
ShardRequest agree_on_shards(const ProcessGroupPtr& group, const std::function<ShardRequest()>& read);

// A collective: the nodes, with memory. Throws c10::ValueError on all ranks if no two ranks share memory.
std::shared_ptr<const node::FoundNodes> find_shared_nodes(const ProcessGroupPtr& group,
                                                          std::optional<int64_t> node_size);

struct HookShards {
  std::shared_ptr<const node::FoundNodes> nodes;  // The exchange of shards has these.
  node::NodeLayout layout;                        // The shards of buckets follow from it (cut_buckets).
  std::vector<int64_t> copy_holders = {};         // By rank; empty without second copies.
};

// A collective: lets the hook average shards, unless parameters stay whole, which no hook averages. Throws
// c10::ValueError on all ranks if the hook's options exclude shards, if its nodes are wrong, or if second copies are
// impossible.
HookShards average_shards(const ProcessGroupPtr& group, const ShardingHook& hook, const ShardOptions& options);

// A collective: the nodes that second copies must not share with their owners, which may be lost as a whole: machines,
// whatever the hook's `node_size` is. On one machine, the nodes that it makes.
node::NodeLayout find_nodes_of_copies(const ProcessGroupPtr& group, std::optional<int64_t> node_size);

// How differences of parameters are sent; empty if the parameters themselves are sent.
std::optional<WireFormat> differences_of(const ShardOptions& options);

// The optimizer must have the parameters whose gradients are averaged. A second optimizer would step others, of which a
// rank has averages in its shard only. If the hook averages all elements, because parameters stay whole, the optimizer
// may have some of them. Throws c10::ValueError.
void check_buckets(const std::vector<at::Tensor>& parameters, const std::vector<std::vector<at::Tensor>>& buckets,
                   const ShardOptions& options);

// cut_pieces, or cut_whole for whole parameters. `costs`: ShardRequest::costs
std::vector<Shard> cut(const std::vector<at::Tensor>& parameters, int64_t count, const ShardOptions& options,
                       const std::vector<int64_t>& costs = {});

// Elements of the largest shard of any node. Nodes may have unequal numbers of ranks.
int64_t largest_shard(const std::vector<at::Tensor>& parameters, const node::NodeLayout& layout,
                      const ShardOptions& options);

}  // namespace narrowcast::sharding
