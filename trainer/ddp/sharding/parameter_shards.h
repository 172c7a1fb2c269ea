// The shards of parameters whose optimizer is outside of C++. ShardedOptimizer of Python uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/process_group.h>
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/sharding/group_exchange.h"
#include "trainer/ddp/sharding/shard_agreement.h"
#include "trainer/ddp/shards/shard_exchange.h"
#include "trainer/ddp/shards/shards.h"

namespace narrowcast::sharding {

// Cuts parameters into shards as ShardedOptimizer does, for an optimizer of the caller: within nodes, or over all
// ranks. The optimizer steps own_pieces(), then exchange() gives the result to the other ranks that share the shards:
// those of the node, or all. All ranks call the collectives in the same order, from one thread each.
class NARROWCAST_EXPORT ParameterShards {
 public:
  // A collective. Shards are within nodes or, if the request has a hook, over all ranks: then they follow from the
  // hook's buckets (follow), and the hook must outlive this object. Throws c10::ValueError and c10::TypeError on all
  // ranks, see agree_on_shards, find_shared_nodes and average_shards.
  ParameterShards(const ProcessGroupPtr& group, const std::function<ShardRequest()>& read);
  ~ParameterShards();
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;

  // This rank's pieces, without gradients: a whole parameter in its shape, and a part of one as a 1-D tensor. They lie
  // in the parameters' memory or, if differences are exchanged, in separate memory: the masters.
  std::vector<at::Tensor> own_pieces() const;
  bool has_masters() const { return differences_.has_value(); }

  // The shards that this rank shares with others, in the order of ranks().
  const std::vector<Shard>& shards() const { return shards_; }
  const std::vector<int64_t>& ranks() const { return ranks_; }

  // Over all ranks, a collective before each step: the shards become those of `buckets`, the parameters in each bucket
  // of the last averaged pass. Masters go with them; before the first step, and the first one after forget_masters(),
  // they get the values of the parameters. Returns whether own_pieces() are others now. Throws c10::ValueError, see
  // check_buckets. Throws c10::DistBackendError if another rank fails; the masters are then lost.
  bool follow(const std::vector<std::vector<at::Tensor>>& buckets);
  void forget_masters() { has_taken_masters_ = false; }

  // A collective: the parameters get the pieces of the other ranks. With a `failure` this rank gives nothing, and all
  // ranks fail. Throws c10::DistBackendError if one of them fails; parameters are then partly the new ones.
  void exchange(const std::exception_ptr& failure = nullptr);

  // A collective: float32 tensors of ranks(). Each rank gives `own`, 1-D. In the order of ranks(), `numels` are the
  // numbers of elements that they give, and `wanted` are 1-D tensors to which they are written; the list of a rank may
  // be empty if its elements are not wanted. `largest` is at least each number of any node, and equal on all ranks of
  // the group. c10::ValueError for tensors with other numbers of elements.
  void gather(const std::vector<at::Tensor>& own, const std::vector<int64_t>& numels, int64_t largest,
              const std::vector<std::vector<at::Tensor>>& wanted);

 private:
  // The result of the agreement.
  ParameterShards(const ProcessGroupPtr& group, ShardRequest request);
  void shard_within_nodes();
  void shard_over_all();
  void use(std::vector<Shard> shards, int64_t largest);
  at::Tensor part_of(const Piece& piece) const;
  std::vector<at::Tensor> pieces_of(const Shard& shard) const;
  std::vector<at::Tensor> moved_masters(const Shard& target) const;
  const Shard& own_shard() const { return shards_[exchange_->own()]; }

  const ProcessGroupPtr group_;
  const ShardOptions options_;
  const std::vector<at::Tensor> parameters_;
  const std::unordered_map<const at::TensorImpl*, size_t> indices_;  // The parameters' places in their list.
  std::vector<int64_t> ranks_;
  std::shared_ptr<const node::FoundNodes> nodes_;
  std::unique_ptr<ShardExchange> exchange_;
  std::vector<Shard> shards_;
  // Over all ranks:
  std::optional<ShardingHook> hook_;
  GroupExchange* over_all_ = nullptr;       // exchange_
  std::optional<node::NodeLayout> layout_;  // From which the shards of buckets follow; empty if parameters stay whole.
  std::optional<WireFormat> differences_;
  std::vector<std::vector<at::Tensor>> buckets_;  // shards_ follow these.
  std::vector<at::Tensor> masters_;
  bool has_taken_masters_ = false;
};

}  // namespace narrowcast::sharding
