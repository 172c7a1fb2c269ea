// What the quantised all-reduce keeps for a process group from call to call.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ops/codec/wire_format.h"
#include "ops/collectives/mean/announced_mean_job.h"
#include "ops/collectives/mean/quantized_mean_job.h"

namespace narrowcast::collectives {

// Memory for the messages of one call: of the largest call yet. Fresh memory costs more than the network does. Nothing
// here says what other ranks do, and nothing keeps the group alive.
class GroupWorkspace {
 public:
  // The group's own, made at its first call. A group does not tell when it is destroyed: the next call on any group
  // frees what those that are gone had. Thread-safe.
  static std::shared_ptr<GroupWorkspace> of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  GroupWorkspace(int64_t rank, int64_t world_size);

  // To be held during a call. One call of a group is under way at a time, in whatever threads they are made.
  std::mutex in_use;

  const std::shared_ptr<AnnouncedMeanJob>& call() const { return call_; }

  // The mean of arrays of `numel` elements. The last one is kept.
  const std::shared_ptr<QuantizedMeanJob>& mean(int64_t numel, WireFormat format);

  // After a call: keeps nothing of the caller's.
  void forget_call();

 private:
  const int64_t rank_;
  const int64_t world_size_;
  const JobMemory memory_;
  const std::shared_ptr<AnnouncedMeanJob> call_;
  std::shared_ptr<QuantizedMeanJob> mean_;
};

}  // namespace narrowcast::collectives
