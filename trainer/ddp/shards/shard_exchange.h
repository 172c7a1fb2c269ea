// Exchanges of the shards that ranks hold.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/network_errors.h>
#include <narrowcast/process_group.h>
#include "ops/comm/engine/engine.h"
#include "trainer/ddp/shards/shards.h"

namespace narrowcast::sharding {

// The elements in part `index` of a shard, if exchanges cut shards into parts of `most` elements.
inline int64_t part_numel(int64_t numel, int64_t index, int64_t most) {
  return std::clamp<int64_t>(numel - index * most, 0, most);
}

// The ranks that hold one copy of all shards together, and their exchanges. Shards are numbered as these ranks are.
//
// All functions are collectives of the group: ranks of other nodes exchange other elements at the same time, so that
// all ranks run the same number of jobs. They throw c10::DistBackendError if a peer fails.
class ShardExchange {
 public:
  virtual ~ShardExchange() = default;

  // The number of shards, and of this rank's own.
  virtual int64_t count() const = 0;
  virtual int64_t own() const = 0;
  // The numbers of shards of all copies of them that the group has.
  virtual std::vector<int64_t> counts() const = 0;

  // The sizes of the shards of the next calls, in elements, and the largest shard of any copy. Not a collective.
  virtual void set_sizes(std::vector<int64_t> numels, int64_t largest) = 0;

  // Each rank gives the elements of its shard, and writes the others'. By shard, its elements; what is a gap is not
  // written. With a `failure` this rank gives nothing: all ranks fail, this one with it. `name` is that of the exchange
  // in errors.
  virtual void run(const std::string& name, const std::vector<Elements>& shards,
                   const std::exception_ptr& failure = nullptr) = 0;

  // Bytes of elements that this rank has sent to other nodes.
  virtual int64_t bytes_sent() const = 0;

  // Each rank gives numbers, as many as `counts` says by shard. Returns those of all ranks, by shard.
  virtual std::vector<std::vector<int64_t>> all_gather(const std::string& name, const std::vector<int64_t>& counts,
                                                       const std::vector<int64_t>& own) = 0;
};

// Jobs of one exchange. They use what they were given until they end, so this object waits for them.
class RunningJobs {
 public:
  // `step` names the exchange in errors.
  RunningJobs(ProcessGroupPtr group, std::string step) : group_(std::move(group)), step_(std::move(step)) {}
  ~RunningJobs() { wait_for_ends(); }
  RunningJobs(const RunningJobs&) = delete;
  RunningJobs& operator=(const RunningJobs&) = delete;

  void submit(engine::Engine& engine, std::shared_ptr<engine::Job> job) {
    with_network_errors(group_->getRank(), step_, [&] { futures_.push_back(engine.submit(std::move(job))); });
  }

  // Returns once the first `count` jobs have succeeded. Throws what one of them has thrown, once all jobs have ended.
  void wait_for(int64_t count) {
    with_network_errors(group_->getRank(), step_, [&] {
      for (; succeeded_ < count; ++succeeded_) {
        const auto& future = futures_.at(static_cast<size_t>(succeeded_));
        future->wait();
        if (future->hasError()) {
          wait_for_ends();
        }
        future->waitAndThrow();
      }
    });
  }
  void wait_for_all() { wait_for(std::ssize(futures_)); }

 private:
  void wait_for_ends() const {
    for (const auto& future : futures_) future->wait();
  }

  const ProcessGroupPtr group_;
  const std::string step_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;
  int64_t succeeded_ = 0;
};

inline void submit_and_wait(const ProcessGroupPtr& group, engine::Engine& engine, const std::string& step,
                            const std::vector<std::shared_ptr<engine::Job>>& jobs) {
  RunningJobs running(group, step);
  for (const auto& job : jobs) running.submit(engine, job);
  running.wait_for_all();
}

}  // namespace narrowcast::sharding
