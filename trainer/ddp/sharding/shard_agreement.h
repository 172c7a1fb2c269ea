// How ranks agree on the parameters that they shard, before anything is changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/process_group.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/sharding/shards.h"

namespace narrowcast::sharding {

// A rank's arguments. All ranks must have the same, except the elements of the parameters.
struct ShardRequest {
  ShardOptions options = {};
  std::vector<at::Tensor> parameters = {};
  std::vector<size_t> groups = {};      // By parameter, the index of its group.
  std::vector<NamedValue> values = {};  // Others, e.g. the kind of optimizer. Errors name them first.
};

// A collective: the request that `read` returns. Throws c10::ValueError on all ranks for a group of one rank, for an
// error of `read` or a wrong request on any rank, and if requests differ between ranks. c10::DistBackendError if a peer
// fails.
ShardRequest agree_on_shards(const ProcessGroupPtr& group, const std::function<ShardRequest()>& read);

// A collective: the nodes, with memory. Throws c10::ValueError on all ranks if no two ranks share memory.
std::shared_ptr<const node::FoundNodes> find_shared_nodes(const ProcessGroupPtr& group,
                                                          std::optional<int64_t> node_size);

// cut_pieces, or cut_whole for whole parameters.
std::vector<Shard> cut(const std::vector<at::Tensor>& parameters, int64_t count, const ShardOptions& options);

// Elements of the largest shard of any node. Nodes may have unequal numbers of ranks.
int64_t largest_shard(const std::vector<at::Tensor>& parameters, const node::NodeLayout& layout,
                      const ShardOptions& options);

}  // namespace narrowcast::sharding
