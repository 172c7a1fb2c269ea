// One thread per process group that runs all its point-to-point exchanges.
//
// Why a thread of its own: Gloo's sends and receives have no futures, so that
// somebody must wait for them; and Gloo gives out the tags of collectives from a
// plain counter that the Reducer uses from the backward thread while buckets are
// in flight, so that collectives cannot be called from here. Messages with
// reserved tags can.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include "ops/comm/engine/transport.h"

namespace narrowcast::engine {

// One exchange of messages between the ranks of a group, for instance the mean
// of one gradient bucket. All ranks submit the same exchanges in the same order.
//
// Rules that keep an exchange from waiting for itself:
//   - start posts every receive of the exchange, those of later hops included,
//     before its first send: then no message ever waits for its receiver.
//   - start waits for nothing. Another exchange may still be unfinished.
//   - advance waits for what other ranks do in start, in an earlier advance of the
//     same exchange, or in the same one before they wait there for anything of it, and
//     in their finish of an exchange that is no longer in flight here; finish also for
//     what they do in the last advance.
//   - finish does nothing that another rank's advance of the same exchange waits for.
//   - what a rank skips because it is empty, its peer skips as well.
// All run on the engine's thread, in this order. Tensors they hand to the transport
// stay untouched until finish has returned.
class Job {
 public:
  virtual ~Job() = default;

  // What errors call this exchange, for instance "quantize_per_tensor of bucket 3".
  virtual std::string name() const = 0;

  // Posts the receives, encodes and sends what needs nothing from other ranks.
  virtual void start(Transport& transport) = 0;

  // How often advance is called, once for each hop but the last. Other exchanges may start and advance between two
  // such calls. Asked for once start has returned.
  virtual int64_t advances() const { return 1; }

  // Waits for what the hop before has brought, and sends what follows from it. An exchange of one hop has nothing to
  // do here.
  virtual void advance(Transport& /*transport*/) {}

  // Whether the next advance would find all that it waits for. False where that cannot be told without waiting.
  virtual bool is_ready() { return false; }

  // Whether the next exchange may start before this one has finished. False keeps all later ones from sending anything
  // until it is known that this one did not fail.
  virtual bool lets_next_start() const { return true; }

  // Waits for messages and decodes them. Returns the value of the exchange's future.
  virtual at::Tensor finish(Transport& transport) = 0;
};

class Worker;

// Jobs that are in flight at most.
inline constexpr size_t kMaxInFlight = 2;

// Runs jobs first in, first out, two of them in flight: job k + 1 starts
// (encodes and sends) as soon as it is there and job k waits for the network. Of
// two that wait for their first hop of two, both send their second before the older
// one finishes. So the network always has messages while one is decoded:
//
//   engine:   start 0  start 1  advance 0  advance 1  finish 0  start 2  finish 1  start 3  advance 2 ...
//   network:     hop 1 of 0, hop 1 of 1,   hop 2 of 0, hop 2 of 1,         hop 1 of 2, hop 1 of 3, ...
//
// A job with more hops goes on in the oldest's advances only if it is ready, and by one
// advance: what other ranks wait for comes in the order of jobs. No wait can be in a
// circle: job k's advance waits for other ranks' start k and for what the oldest job
// there does; their start k at most for their finish k - 2.
//
// The first job that throws fails its future with what it threw, and all later
// jobs of the group fail with c10::DistBackendError naming that first failure:
// after it nobody knows which messages are still under way.
class NARROWCAST_EXPORT Engine {
  struct Key {};  // Only for_group makes engines.
  struct KnownBackend;
  struct BackendOfGroup;

 public:
  // The engine of `group`'s CPU backend: all callers share one, also those of other
  // groups with that backend, and its thread ends with its last user. c10::ValueError if the group has no backend for
  // CPU tensors.
  static std::shared_ptr<Engine> for_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // Engines of one backend count its exchanges together, alike on all ranks.
  Engine(Key, c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<BackendOfGroup> of_group);

  // Gives up what is unfinished (those futures fail) and ends the thread. Never waits
  // for other ranks. May happen on the engine's own thread, in a future's callback.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues `job`; the future is completed on the engine's thread with what Job::finish
  // returned. All ranks submit the same jobs in the same order. A job may be
  // submitted again once its future is completed. Thread-safe.
  c10::intrusive_ptr<c10::ivalue::Future> submit(std::shared_ptr<Job> job);

 private:
  std::shared_ptr<BackendOfGroup> of_group_;
  std::shared_ptr<Worker> worker_;  // Shared with the thread, which may outlive this object by a callback.
  std::thread thread_;
};

}  // namespace narrowcast::engine
