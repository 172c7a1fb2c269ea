// The shards of parameters whose optimizer is outside of C++. ShardedOptimizer of Python uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/process_group.h>
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/sharding/node_exchange.h"
#include "trainer/ddp/sharding/shard_agreement.h"
#include "trainer/ddp/sharding/shards.h"

namespace narrowcast::sharding {

// Cuts parameters into shards as ShardedOptimizer does. An optimizer of the caller steps own_pieces(), then exchange()
// gives them to the other ranks of the node. All ranks call the collectives in the same order, from one thread each.
class NARROWCAST_EXPORT ParameterShards {
 public:
  // A collective. Throws c10::ValueError and c10::TypeError on all ranks, see agree_on_shards and find_shared_nodes.
  ParameterShards(const ProcessGroupPtr& group, const std::function<ShardRequest()>& read);
  ~ParameterShards();
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;

  // This rank's pieces, in the parameters' memory and without their gradients: a whole parameter in its shape, and a
  // part of one as a 1-D tensor.
  std::vector<at::Tensor> own_pieces() const;

  // The shards of this rank's node, by local rank.
  const std::vector<Shard>& shards() const { return shards_; }
  // The ranks of this rank's node, by local rank.
  const std::vector<int64_t>& ranks() const { return nodes_->layout.ranks_of(nodes_->layout.node_of(rank_)); }

  // A collective: the parameters get the pieces of the other ranks of the node. With a `failure` this rank gives
  // nothing, and all ranks of the node fail. Throws c10::DistBackendError if a rank of the node fails; parameters are
  // then partly the new ones.
  void exchange(const std::exception_ptr& failure = nullptr);

  // A collective: float32 tensors of the ranks of each node. Each rank gives `own`, 1-D. By local rank, `numels` are
  // the numbers of elements that the ranks give, and `wanted` are 1-D tensors to which they are written; the list of a
  // rank may be empty if its elements are not wanted. `largest` is at least each number of any node, and equal on all
  // ranks of the group. c10::ValueError for tensors with other numbers of elements.
  void gather(const std::vector<at::Tensor>& own, const std::vector<int64_t>& numels, int64_t largest,
              const std::vector<std::vector<at::Tensor>>& wanted);

 private:
  // The result of the agreement.
  ParameterShards(const ProcessGroupPtr& group, const ShardRequest& request);
  void set_sizes(const std::vector<Shard>& shards, int64_t largest);

  const ProcessGroupPtr group_;
  const int64_t rank_;
  const std::vector<at::Tensor> parameters_;
  const std::shared_ptr<const node::FoundNodes> nodes_;
  const std::vector<Shard> shards_;
  NodeExchange exchange_;
};

}  // namespace narrowcast::sharding
