// Quantised collectives for callers who have not agreed on the call before. Every rank announces its call to all others
// before data is sent, so that all ranks get the same result of the comparison (ops/comm/groups/agree.h).
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
#include <utility>

#include <narrowcast/levels.h>
#include <narrowcast/wire_formats.h>
#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/announcement_exchange.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::collectives {

// The operator's name in errors.
inline constexpr const char* kQuantizedAllReduce = "quantized_all_reduce";

// The operator's arguments besides the array and the group.
struct AllReduceCallOptions {
  WireFormat format = WireFormat::kFp32;
  Levels levels = Levels::kAuto;
};

Announcement announcement_of(const at::Tensor& array, const AllReduceCallOptions& options);

// The exchange of a call on the engine.
// start:   announces this rank's call to every other rank, and prepares the job of the call. In two levels the ranks of
//          a node thus fill its memory while announcements are in flight.
// advance: waits for the announcements of all others, with nodes (AnnouncementExchange) in the second call. If all are
//          the same, every rank knows the size of every message, and the job of the call starts; it advances in the
//          next calls. If not, no rank sends any data: the job is cancelled, and the group stays usable. (Encoding
//          before the comparison, and sending everything at once afterwards, is slower: then no message is in flight
//          while the next one is encoded.)
// finish:  finishes that job.
class AnnouncedJob final : public engine::Job {
 public:
  AnnouncedJob(int64_t rank, int64_t world_size);

  // Sets the call for the next submission. `job` runs if all ranks make the same call. If `job` is null, only
  // announcements are exchanged.
  void set_call(const Announcement& own, std::shared_ptr<engine::Job> job);

  // The nodes over which later submissions announce calls. See AnnouncementExchange.
  void set_nodes(std::shared_ptr<const node::FoundNodes> nodes) { calls_.set_nodes(std::move(nodes)); }

  // After a submission: throws, the same on all ranks, unless all ranks made the same call (check_announcements). The
  // job itself does not fail then, because its engine would take no other job after a failure.
  void check() const;

  // The name of the call.
  std::string name() const override { return name_; }
  void start(engine::Transport& transport) override;
  int64_t advances() const override;
  bool is_ready() override;
  // Not before the job of the call has started, because exchanges take slots of a node's memory in the order of jobs.
  bool lets_next_start() const override { return is_compared_; }
  void advance(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;
  void give_up() override;

 private:
  void compare(engine::Transport& transport);

  const int64_t rank_;
  std::string name_;
  AnnouncementExchange calls_;
  bool is_forwarded_ = false;
  bool is_compared_ = false;          // And the job of the call has started.
  std::exception_ptr difference_;     // Between the ranks, in the last submission.
  std::shared_ptr<engine::Job> job_;  // Null also once the ranks are found to differ.
};

// The nodes of a backend's ranks. All groups of a backend send their messages over it, and the ranks of a call may use
// different groups of it: the nodes are kept as long as the backend. Thread-safe.
class NodesOfBackend {
 public:
  using Nodes = std::shared_ptr<const node::FoundNodes>;

  Nodes get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return found_;
  }
  void set(Nodes found) {
    const std::lock_guard<std::mutex> lock(mutex_);
    found_ = std::move(found);
  }

 private:
  mutable std::mutex mutex_;
  Nodes found_;
};

// State that quantised collectives keep for a process group between calls. It does not keep the group alive.
//  - Memory for the messages of one call, the largest so far. Allocating it each time takes longer than the network.
//  - The nodes of the group.
class GroupWorkspace {
 public:
  // The workspace of the group, made at its first call. Nothing reports that a group is destroyed, so the next call on
  // any group frees the workspaces and the nodes' memory of destroyed groups. Thread-safe.
  static std::shared_ptr<GroupWorkspace> of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  GroupWorkspace(int64_t rank, int64_t world_size, std::shared_ptr<NodesOfBackend> nodes);

  // Held during a call. A group runs one call at a time, whatever threads the calls come from.
  std::mutex in_use;

  // Null until the first call that may have two levels. All ranks set nodes in the same call, so they are equal.
  std::shared_ptr<const node::FoundNodes> nodes() const { return nodes_->get(); }
  void set_nodes(std::shared_ptr<const node::FoundNodes> nodes) { nodes_->set(std::move(nodes)); }

  // The all-reduce job for arrays of `numel` elements, in two levels over `nodes`, or in one level if that is null. The
  // last job is kept.
  const std::shared_ptr<AllReduceJob>& mean(int64_t numel, WireFormat format,
                                            const std::shared_ptr<const node::FoundNodes>& nodes);

  // The memory of the same messages, for the job of another collective. Forgets the last job of mean(), which would
  // keep a buffer that is replaced.
  const std::shared_ptr<MessageMemory>& messages();

  // Runs the call on the group's engine: AnnouncedJob::set_call, check. Afterwards it holds nothing of the
  // caller's. If the exchange fails, the ranks of this node fail too.
  void run(engine::Engine& engine, const Announcement& own, std::shared_ptr<engine::Job> job);

  // Calls enqueue(), for an array on a device's stream. Before the first such `call` it calls announce(), for which the
  // host waits. If announce() throws, the next such call counts as the first. Calls of several threads take turns.
  void run_on_stream(const Announcement& call, const std::function<void()>& announce,
                     const std::function<void()>& enqueue);

 private:
  const int64_t rank_;
  const int64_t world_size_;
  const JobMemory memory_;
  const std::shared_ptr<AnnouncedJob> call_;
  std::shared_ptr<AllReduceJob> mean_;
  const std::shared_ptr<NodesOfBackend> nodes_;
  std::mutex on_stream_;
  std::set<std::string> agreed_;  // The messages of calls on which the ranks have agreed.
};

// Sends `own` to all ranks, through the CPU if the group can; else on `device`, and the host waits for it. Throws, the
// same on all ranks, unless the announcements are equal.
void announce_call(const Announcement& own, const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device);

// Runs `check` of this rank's arguments of `call`. If it throws on any rank, all ranks throw (arguments.h). Announces
// nothing if it does not throw: the call's own announcement follows. c10::ValueError, on this rank only, if the group
// is null.
void check_together(const std::string& call, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                    const std::function<void()>& check);

// c10::ValueError unless `tensor` is on the CPU or a GPU, and the group moves CPU tensors if it is on the CPU.
void check_device(const std::string& name, const at::Tensor& tensor,
                  const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// Replaces x, on the CPU, contiguous, by its mean. Throws like announce_call before data is sent. The group's first
// call that may have two levels finds the nodes of the group, once all ranks have announced the same call.
void average_on_engine(const at::Tensor& x, const AllReduceCallOptions& options,
                       const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// Replaces x, [numel], contiguous, by its mean in one level, for work that is enqueued on the current stream of its
// device afterwards. The ranks announce a group's first call of each size and options. Later calls do not wait, and a
// CUDA graph may record them. Messages have memory for the time of the call: the graph's memory if there is a graph,
// else memory that the allocator has for that stream.
void average_on_stream(const at::Tensor& x, const AllReduceCallOptions& options,
                       const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace narrowcast::collectives
