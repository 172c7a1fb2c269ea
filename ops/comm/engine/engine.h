// One thread per process group that runs all its point-to-point exchanges.
//
// The thread is necessary for two reasons:
//   - Gloo's sends and receives have no futures, so some thread must wait for them.
//   - The thread cannot call collectives: Gloo takes their tags from a plain counter, which the Reducer uses from the
//     backward thread while buckets are in flight. It therefore sends messages with reserved tags.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include "ops/comm/engine/transport.h"

namespace narrowcast::engine {

// One exchange of messages between the ranks of a group, for instance the mean of one gradient bucket. All ranks submit
// the same exchanges in the same order.
//
// All functions below run on the engine's thread, in this order. Tensors that they pass to the transport must not
// change until finish has returned, or until another rank's message shows that they have arrived. The following rules
// prevent deadlocks:
//   - start posts all receives of the exchange, including later hops, before its first send. Then no message waits for
//     its receiver.
//   - start waits for nothing. Another exchange may still be unfinished.
//   - advance may wait for actions of other ranks in start, in an earlier advance of the same exchange, and in their
//     finish of an exchange that is no longer in flight here.
//   - advance may also wait for actions of other ranks in the same advance, before these wait for anything of the
//     exchange there.
//   - finish may wait for the same actions as advance, and for actions of other ranks in the last advance.
//   - finish does nothing that another rank's advance of the same exchange waits for.
//   - If a rank skips a message because it is empty, its peer skips it too.
//   - If one rank may submit exchange x + 1 before x has finished, no rank waits for x before it submits x + 1. Over a
//     carrier that has no memory left for early messages, those of x + 1 hold back later ones of x.
class Job {
 public:
  virtual ~Job() = default;

  // Name of the exchange in errors, for instance "quantize_per_tensor of bucket 3".
  virtual std::string name() const = 0;

  // Posts the receives, then encodes and sends the data that need no message from another rank.
  virtual void start(Transport& transport) = 0;

  // Number of calls of advance: the number of hops minus 1. Other exchanges may start and advance between two calls.
  // The engine reads it after start has returned.
  virtual int64_t advances() const { return 1; }

  // Waits for the messages of the previous hop and sends the ones that depend on them. The default does nothing, for
  // exchanges of one hop.
  virtual void advance(Transport& /*transport*/) {}

  // Returns whether the next advance would not block. Returns false if that is unknown.
  virtual bool is_ready() { return false; }

  // Returns whether the next exchange may start before this one has finished. If false, no later exchange sends
  // anything until this one has succeeded.
  virtual bool lets_next_start() const { return true; }

  // Waits for messages and decodes them. Returns the value of the exchange's future.
  virtual at::Tensor finish(Transport& transport) = 0;

  // Called only if another job contains this one. prepare does the part of start that needs no other rank, and that no
  // other rank can notice. start follows, or cancel, which reverts it. The defaults do nothing.
  virtual void prepare() {}
  virtual void cancel() {}

  // Called once after start, advance or finish has thrown. Tells ranks that wait for this one by other means than
  // messages. The default does nothing.
  virtual void give_up() {}
};

class Worker;

// Maximum number of jobs in flight. A carrier is for long links, which hold more than two jobs.
inline constexpr size_t kMaxInFlight = 2;
inline constexpr size_t kMaxInFlightOverCarrier = 4;

// A carrier of an engine's messages.
struct Carrier {
  c10::intrusive_ptr<c10d::Backend> backend = {};  // Its ranks are those of the group's backend; null: that backend.
  size_t most_in_flight = kMaxInFlight;            // Jobs, at most kMaxInFlightOverCarrier.
  int64_t connections = 1;                         // With each peer on another node. The same on all ranks.
  std::string reason = {};                         // Why that number, if it is not the caller's.
};

// Runs jobs first in, first out, with at most two in flight, or as many as a carrier has. Job k + 1 starts (encodes and
// sends) when it has been submitted and job k waits for the network. If two jobs in flight have two hops each, both
// send their second hop before the older one finishes. The network therefore always has messages while one job decodes:
//
//   engine:   start 0  start 1  advance 0  advance 1  finish 0  start 2  finish 1  start 3  advance 2 ...
//   network:     hop 1 of 0, hop 1 of 1,   hop 2 of 0, hop 2 of 1,         hop 1 of 2, hop 1 of 3, ...
//
// With four, jobs 2 and 3 also start while job 0 waits, so that a long link stays full. They advance later.
//
// While the oldest job advances, the second one advances only if it is ready, and only once, because other ranks wait
// for messages in the order of jobs. There is no cycle of waits. Job k's advance waits for other ranks' start k and for
// actions of their oldest job. Their start k waits at most for their finish k - 2, or k - 4 over a carrier.
//
// If a job throws, its future fails with the exception. All later jobs of the group fail with c10::DistBackendError
// naming the first failure, because the messages that are still in flight are unknown.
class NARROWCAST_EXPORT Engine {
  struct Key {};  // Only for_group makes engines.
  struct KnownBackend;
  struct BackendOfGroup;

 public:
  // Returns the engine of `group`'s CPU backend. All callers share it, including other groups with that backend, and
  // its thread ends with its last user. Throws c10::ValueError if the group has no backend for CPU tensors.
  static std::shared_ptr<Engine> for_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // All engines of one backend share a count of its exchanges, which is equal on all ranks.
  Engine(Key, c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<BackendOfGroup> of_group);

  // Gives up unfinished jobs, whose futures fail, and ends the thread. Never waits for other ranks. May run on the
  // engine's thread, in a future's callback.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues `job`. The future is completed on the engine's thread with the result of Job::finish. All ranks submit the
  // same jobs in the same order. A job may be submitted again once its future is completed. Thread-safe.
  c10::intrusive_ptr<c10::ivalue::Future> submit(std::shared_ptr<Job> job);

  // Makes the exchanges in flight and all later ones fail with the c10::DistBackendError `why`, which is not empty. The
  // first reason counts. Thread-safe.
  void break_off(const std::string& why);

  // Sends the messages of later exchanges over `carrier`. It applies to all engines of the backend, and is kept as long
  // as a group or an engine of it lives. All ranks call it at the same place in the order of exchanges, when the engine
  // is idle. Thread-safe.
  void send_over(Carrier carrier);

  // Whether no exchange is in flight or queued. Thread-safe.
  bool is_idle() const;

  // The carrier in use. Thread-safe.
  Carrier carrier() const;

 private:
  std::shared_ptr<BackendOfGroup> of_group_;
  std::shared_ptr<Worker> worker_;  // Shared with the thread, which may outlive this object during a callback.
  std::thread thread_;
};

}  // namespace narrowcast::engine
