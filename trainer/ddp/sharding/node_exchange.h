// Exchanges of shards within each node.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/collectives/all_gather/node_all_gather.h"
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/shards/shard_exchange.h"

namespace narrowcast::sharding {

// The ranks of each node hold a copy of all shards, which they exchange in the node's memory. Shards are numbered by
// local rank.
class NodeExchange final : public ShardExchange {
 public:
  // `nodes` must have memory.
  NodeExchange(ProcessGroupPtr group, std::shared_ptr<const node::FoundNodes> nodes);

  int64_t count() const override { return nodes_->memory->local_size(); }
  int64_t own() const override { return nodes_->memory->local_rank(); }
  std::vector<int64_t> counts() const override;
  void set_sizes(std::vector<int64_t> numels, int64_t largest) override;
  void run(const std::string& name, const std::vector<Elements>& shards, const std::exception_ptr& failure) override;
  // Returns once all ranks of the node have called it. With a `failure` all ranks of the node fail, this one with it.
  void meet(const std::string& name, const std::exception_ptr& failure = nullptr);
  const std::shared_ptr<const node::FoundNodes>& nodes() const { return nodes_; }
  int64_t bytes_sent() const override { return 0; }
  std::vector<std::vector<int64_t>> all_gather(const std::string& name, const std::vector<int64_t>& counts,
                                               const std::vector<int64_t>& own) override;

 private:
  using Job = collectives::NodeAllGatherJob;

  const ProcessGroupPtr group_;
  const std::shared_ptr<const node::FoundNodes> nodes_;
  const std::shared_ptr<engine::Engine> engine_;
  std::vector<int64_t> numels_;             // The sizes of the shards.
  std::vector<std::shared_ptr<Job>> jobs_;  // Each exchanges the next part of every shard.
};

}  // namespace narrowcast::sharding
