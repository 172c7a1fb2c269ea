// Exchanges of the shards that the ranks of a node hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "ops/collectives/all_gather/node_all_gather.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/sharding/shards.h"

namespace narrowcast::sharding {

// All functions are collectives of the group: ranks of other nodes exchange other elements at the same time, so that
// all ranks run the same number of jobs. They throw c10::DistBackendError if a peer fails.
class ShardExchange {
 public:
  // `nodes` must have memory. `shards` are those of this rank's node, by local rank. `largest_shard`: elements of the
  // largest shard of any node.
  ShardExchange(ProcessGroupPtr group, std::shared_ptr<const node::FoundNodes> nodes, const std::vector<Shard>& shards,
                int64_t largest_shard);

  // Each rank gives the elements of its shard, and writes the others'. By local rank, the elements of each shard; a
  // shard whose elements are not wanted is null. With a `failure` this rank gives nothing: all ranks of the node fail,
  // this one with it. `name` is that of the exchange in errors.
  void run(const std::string& name, const std::vector<std::unique_ptr<Elements>>& shards,
           const std::exception_ptr& failure = nullptr);

  // Each rank gives numbers, as many as `counts` says by local rank. Returns those of all ranks, by local rank.
  std::vector<std::vector<int64_t>> all_gather(const std::string& name, const std::vector<int64_t>& counts,
                                               const std::vector<int64_t>& own);

 private:
  using Job = collectives::NodeAllGatherJob;
  int64_t own() const { return nodes_->memory->local_rank(); }
  void submit_and_wait(const std::string& step, const std::vector<std::shared_ptr<Job>>& jobs);

  const ProcessGroupPtr group_;
  const std::shared_ptr<const node::FoundNodes> nodes_;
  const std::shared_ptr<engine::Engine> engine_;
  std::vector<int64_t> numels_;             // Of the shards, by local rank.
  std::vector<std::shared_ptr<Job>> jobs_;  // Each exchanges the next part of every shard.
};

}  // namespace narrowcast::sharding
