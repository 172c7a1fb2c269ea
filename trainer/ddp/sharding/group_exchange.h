// Exchanges of shards over all ranks of a group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_gather/all_gather_job.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/shards/shard_exchange.h"

namespace narrowcast::sharding {

// All ranks together hold one copy of all shards. Shards are numbered by rank. With nodes of unequal sizes, ranks that
// own no segment (node::NodeLayout) have empty shards, and give no numbers.
class GroupExchange final : public ShardExchange {
 public:
  GroupExchange(ProcessGroupPtr group, std::shared_ptr<const node::FoundNodes> nodes);

  int64_t count() const override { return nodes_->layout.world_size(); }
  int64_t own() const override { return group_->getRank(); }
  std::vector<int64_t> counts() const override { return {count()}; }
  void set_sizes(std::vector<int64_t> numels, int64_t largest) override;
  void run(const std::string& name, const std::vector<Elements>& shards, const std::exception_ptr& failure) override;
  int64_t bytes_sent() const override { return bytes_sent_; }
  std::vector<std::vector<int64_t>> all_gather(const std::string& name, const std::vector<int64_t>& counts,
                                               const std::vector<int64_t>& own) override;

  // Each rank sends, in `format`, its `minuend` minus the elements of its shard. All ranks decode these differences,
  // and add them to the elements of the shards. The rank that sent them adds them too: all ranks then have the same
  // elements.
  void add_differences(const std::string& name, WireFormat format, const Elements& minuend,
                       const std::vector<Elements>& shards, const std::exception_ptr& failure);

  // Each rank gives `own`, the elements of its shard, and writes those of all shards, its own too. `own` is destroyed,
  // also if the exchange fails: the system gets its pages back part by part. So a rank holds hardly more than before
  // and after.
  void move(const std::string& name, const Elements& own, const std::vector<Elements>& shards);

  // `run` and add_differences in two halves: what they are given must not change until finish(), or any other function
  // of an exchange, has returned. The last elements of each shard are exchanged first.
  void start(const std::string& name, const std::vector<Elements>& shards, const std::exception_ptr& failure);
  void start_differences(const std::string& name, WireFormat format, const Elements& minuend,
                         const std::vector<Elements>& shards, const std::exception_ptr& failure);
  // Waits until the elements from `begin` on of all shards are exchanged. Does nothing without an exchange in progress.
  void wait_from(int64_t begin);
  void finish();
  // Whether the last exchange that was started in halves has ended without an error. The others are not of parameters.
  bool is_complete() const { return is_complete_; }

  // After start_differences, and an error: adds the differences of one shard that are not added yet, without any other
  // rank. `minuend`: the elements of its owner.
  void finish_alone(int64_t shard, WireFormat format, const Elements& minuend, const Elements& elements);
  // As if start_differences was called, and had failed at once.
  void begin_alone();

  const node::NodeLayout& layout() const { return nodes_->layout; }

 private:
  using Job = collectives::AllGatherJob;
  // Both are called on the engine's thread, until the exchange has ended.
  // Writes `numel` numbers from element `begin` of this rank's shard on.
  using Give = std::function<void(float* to, int64_t begin, int64_t numel)>;
  // Takes the numbers of a shard.
  using Take = std::function<void(int64_t shard, const float* from, int64_t begin, int64_t numel)>;

  void start_copying(const std::string& name, const std::vector<Elements>& shards, const std::exception_ptr& failure);
  std::vector<std::shared_ptr<Job>>& jobs_of(WireFormat format);
  void exchange(const std::string& name, WireFormat format, const Give& give, const Take& take,
                const std::exception_ptr& failure);
  int64_t part_numel(int64_t shard, int64_t index) const;

  const ProcessGroupPtr group_;
  const std::shared_ptr<const node::FoundNodes> nodes_;
  const std::shared_ptr<engine::Engine> engine_;
  const std::shared_ptr<collectives::MessageMemory> memory_;
  const int64_t most_numel_;     // Elements of a shard in one job.
  std::vector<int64_t> numels_;  // The sizes of the shards.
  int64_t parts_ = 0;            // Jobs of an exchange.
  struct Jobs {
    WireFormat format;
    std::vector<std::shared_ptr<Job>> jobs;  // Each exchanges the next part of every shard.
  };
  std::vector<Jobs> jobs_;
  at::Tensor decoded_;  // float32: the part in progress, on the engine's thread.
  int64_t bytes_sent_ = 0;
  bool is_complete_ = true;
  std::vector<std::vector<char>> added_;  // By shard and part: whether the last exchange has added its differences.
  std::unique_ptr<RunningJobs> running_;  // Null without an exchange in progress. The last member: it uses the others.
};

}  // namespace narrowcast::sharding
