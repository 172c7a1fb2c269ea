// Connects a Reducer to the hook that averages its buckets.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

#include <narrowcast/comm_hook.h>

namespace narrowcast {

// Passes the buckets of Reducers to a hook, for one Reducer after the other, and keeps the hook's futures until they
// are completed. It shares ownership of the hook and can outlive the Reducers.
class BucketExchanges : public std::enable_shared_from_this<BucketExchanges> {
 public:
  using Future = c10::ivalue::Future;

  struct Options {
    int64_t rank = 0;
    // Time limit for the future of a bucket, counted from the end of the backward pass or from the completion of the
    // bucket before it. No limit by default: the hooks of the library end every all-reduce at the time-out of the
    // group.
    std::optional<std::chrono::milliseconds> limit = std::nullopt;
    // Called before the hook gets a bucket, unless it is null.
    std::function<void(const c10d::GradBucket&)> before_bucket = nullptr;
  };

  // `hook` is not null.
  BucketExchanges(std::shared_ptr<hooks::CommHook> hook, Options options);

  // Makes `reducer` use the hook: once per Reducer, before its first backward pass. Throws c10::Error if it has a hook
  // already.
  void register_with(c10d::Reducer& reducer);

  // Reduces the first backward pass of a static graph, at its end. Only there does the Reducer pass all buckets with
  // the number of the first one; the hook gets them with their correct numbers.
  void reduce_delayed(c10d::Reducer& reducer);

  // From now on the hook gets the buckets of a backward pass only when the last one is ready. Then nothing is sent
  // while gradients are computed.
  void hold_until_last() { holds_until_last_ = true; }
  // It gets each bucket at once again.
  void stop_holding() { holds_until_last_ = false; }

  // The parameters in each bucket of the last backward pass, in the order in which the hook got them; empty before one.
  std::vector<std::vector<at::Tensor>> last_buckets();

  // Waits until all futures are completed, with a value or an error: at most `limit` for each. While an exception
  // passes it waits at most 5 s for all, because that exception may be the only explanation why other ranks do not
  // come. A backward pass that ends by an exception leaves exchanges in flight; if a rank gives them up, its group
  // cannot be used any more.
  void drain();

 private:
  class Registered;

  // A future of the backward pass in progress.
  struct Exchange {
    size_t bucket;
    c10::intrusive_ptr<Future> future;
  };

  c10::intrusive_ptr<Future> run(c10d::GradBucket& bucket);
  // A bucket that waits for the last one, and the future that the Reducer has for it.
  struct Held {
    c10d::GradBucket bucket;
    c10::intrusive_ptr<Future> future;
  };

  c10::intrusive_ptr<Future> begin(c10d::GradBucket& bucket);
  c10::intrusive_ptr<Future> hold(const c10d::GradBucket& bucket);
  void begin_held();
  std::vector<Exchange> take_exchanges();
  void end_pass();

  const std::shared_ptr<hooks::CommHook> hook_;
  const Options options_;
  size_t delayed_buckets_ = 0;  // Number of buckets that reduce_delayed passes; 0 outside it.
  size_t next_delayed_ = 0;
  bool holds_until_last_ = false;
  std::vector<Held> held_;  // The buckets of a pass that holds them.
  std::mutex mutex_;        // A DistributedDataParallel may be destroyed while a backward pass runs on another thread.
  std::vector<Exchange> exchanges_;
  std::vector<std::vector<at::Tensor>> last_buckets_;
};

}  // namespace narrowcast
