// The quantised all-reduce of callers who have agreed on nothing before: every rank announces its call to all others
// before data is sent, so that all come to the same verdict (ops/comm/groups/agree.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/wire_formats.h>
#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/announcement_exchange.h"

namespace narrowcast::collectives {

// As errors call it.
inline constexpr const char* kQuantizedAllReduce = "quantized_all_reduce";

Announcement announcement_of(const at::Tensor& array, WireFormat format);

// A call's exchange on the engine.
// start:   sends the announcement of this rank's call to every other rank.
// advance: waits for the announcements of all others. If all are the same, every rank knows the size of every message,
//          and the mean starts. If not, no rank sends any data: the exchange ends, and the group is as good as before.
//          (Announcements take a fraction of a millisecond. Encoding meanwhile, to send everything at once afterwards,
//          costs more: then no message is under way while the next one is encoded.)
// finish:  the mean's.
//
// Nothing of a former call is relied on, so that ranks cannot differ in what they remember.
class AnnouncedAllReduceJob final : public engine::Job {
 public:
  // `name`: of the exchange, in errors.
  AnnouncedAllReduceJob(std::string name, int64_t rank, int64_t world_size);

  // What the next submission does. `mean`, with its call set, is run if all ranks make the same call; null:
  // announcements are all there is to exchange.
  void set_call(const Announcement& own, std::shared_ptr<AllReduceJob> mean);

  // After a submission: throws, on all ranks the same, unless all ranks made the same call (check_announcements). That
  // is not an error of the job, after which its engine would take no other.
  void check() const;

  std::string name() const override { return name_; }
  void start(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;

 private:
  const std::string name_;
  const int64_t rank_;
  AnnouncementExchange calls_;
  std::exception_ptr difference_;       // Between the ranks, in the last submission.
  std::shared_ptr<AllReduceJob> mean_;  // Null also once the ranks are found to differ.
};

// What the quantised all-reduce keeps for a process group from call to call: memory for the messages of one call,
// of the largest yet. Fresh memory costs more than the network does. Nothing here says what other ranks do, and
// nothing keeps the group alive.
class GroupWorkspace {
 public:
  // The group's own, made at its first call. A group does not tell when it is destroyed: the next call on any group
  // frees what those that are gone had. Thread-safe.
  static std::shared_ptr<GroupWorkspace> of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  GroupWorkspace(int64_t rank, int64_t world_size);

  // To be held during a call. One call of a group is under way at a time, in whatever threads they are made.
  std::mutex in_use;

  const std::shared_ptr<AnnouncedAllReduceJob>& call() const { return call_; }

  // The mean of arrays of `numel` elements. The last one is kept.
  const std::shared_ptr<AllReduceJob>& mean(int64_t numel, WireFormat format);

  // After a call: keeps nothing of the caller's.
  void forget_call();

  // Calls enqueue(), for an array on a device's stream, and before the first such call announce(), for which the host
  // waits; if that throws, the next such call is the first. Calls of several threads take turns.
  void run_on_stream(const Announcement& call, const std::function<void()>& announce,
                     const std::function<void()>& enqueue);

 private:
  const int64_t rank_;
  const int64_t world_size_;
  const JobMemory memory_;
  const std::shared_ptr<AnnouncedAllReduceJob> call_;
  std::shared_ptr<AllReduceJob> mean_;
  std::mutex on_stream_;
  std::set<std::string> agreed_;  // Messages of calls.
};

// Hands `own` to all ranks, through the CPU if the group can: else on `device`, which is waited for. Throws, on all
// ranks the same, unless theirs are equal. Then averages, on the CPU, by `mean` if there is one.
using MakeAllReduceJob = std::function<std::shared_ptr<AllReduceJob>(GroupWorkspace&)>;
void announce_call(const Announcement& own, const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                   const MakeAllReduceJob& make_mean);

// Replaces x, [numel], contiguous, by its mean for what is enqueued on the current stream of its device afterwards. The
// ranks announce the first call of a size and format of a group; later ones wait for nothing, and a CUDA graph may
// record them. Messages have memory for the time of the call: that of the graph where there is one, else what the
// allocator has at hand for that stream.
void average_on_stream(const at::Tensor& x, WireFormat format, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace narrowcast::collectives
