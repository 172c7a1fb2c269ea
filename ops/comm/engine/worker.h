// The work of an engine's thread. Private to ops/comm/engine.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "ops/comm/engine/engine.h"

namespace narrowcast::engine {

// A job passes these stages: submit puts it into queued_. The thread moves it to in_flight_, starts it, advances it,
// finishes the oldest in flight and completes its future. While a job waits for the network, the next one starts.
class Worker {
 public:
  Worker(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<std::atomic<int64_t>> exchanges)
      : backend_(std::move(backend)), started_(std::move(exchanges)) {}

  c10::intrusive_ptr<c10::ivalue::Future> submit(std::shared_ptr<Job> job);

  // Body of the thread. Returns after stop, when all futures are completed.
  void run();

  // Gives up unfinished jobs and makes run return.
  void stop();

 private:
  struct Submission {
    std::shared_ptr<Job> job;
    c10::intrusive_ptr<c10::ivalue::Future> future;
  };
  struct InFlight {
    InFlight(Submission submission, TransportOptions options)
        : job(std::move(submission.job)),
          future(std::move(submission.future)),
          name(options.exchange),
          transport(std::move(options)) {}
    const std::shared_ptr<Job> job;
    const c10::intrusive_ptr<c10::ivalue::Future> future;
    const std::string name;
    Transport transport;
    int64_t advances_left = 0;  // Valid once started.
    bool advanced = false;      // Has advanced at least once.
    // Thrown by start or advance. It is kept until the job is the oldest, because futures complete in order.
    std::exception_ptr error;
  };

  bool wait_for_job();
  std::shared_ptr<InFlight> take_queued();
  void start_queued();
  // The jobs in flight; second returns null if there is only one. Only the thread changes them.
  std::shared_ptr<InFlight> oldest();
  std::shared_ptr<InFlight> second();
  void advance(InFlight& exchange);
  void advance_in_flight();
  void finish_oldest();
  at::Tensor run_to_end(InFlight& exchange) const;
  void complete(c10::ivalue::Future& future, at::Tensor value, const std::exception_ptr& error);
  void remember_failure(const std::exception_ptr& error);
  void throw_if_failed(const std::string& exchange) const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  std::mutex mutex_;  // Guards queued_, in_flight_ (as a list) and stopping_.
  std::condition_variable changed_;
  std::deque<Submission> queued_;
  std::deque<std::shared_ptr<InFlight>> in_flight_;
  bool stopping_ = false;
  const std::shared_ptr<std::atomic<int64_t>> started_;
  // Used by the thread only.
  std::string first_failure_;
};

}  // namespace narrowcast::engine
