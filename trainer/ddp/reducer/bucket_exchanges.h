// What stands between a Reducer and the hook that averages its buckets.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

#include <narrowcast/comm_hook.h>

namespace narrowcast {

// Gives the buckets of Reducers to a hook, one Reducer after the other, and keeps the futures that the hook returns
// until they are completed. It can outlive the Reducers, and owns the hook with them.
class BucketExchanges : public std::enable_shared_from_this<BucketExchanges> {
 public:
  using Future = c10::ivalue::Future;

  struct Options {
    int64_t rank = 0;
    // The limit for the future of a bucket, counted from the end of the backward pass or of the bucket before it.
    // Without a value there is none: the hooks of the library end every exchange at the time-out of the group.
    std::optional<std::chrono::milliseconds> limit = std::nullopt;
  };

  // `hook` is not null.
  BucketExchanges(std::shared_ptr<hooks::CommHook> hook, const Options& options);

  // Makes `reducer` use the hook: once for a Reducer, before its first backward pass. Throws c10::Error if it has a
  // hook.
  void register_with(c10d::Reducer& reducer);

  // Reduces the first backward pass of a static graph, at its end. Only then does the Reducer hand over all buckets
  // with the number of the first one; the hook gets them with their own.
  void reduce_delayed(c10d::Reducer& reducer);

  // Waits until all futures are completed, with a value or an error: each at most the limit, and at most 5 s for all
  // while an exception passes, which may be the only one that knows why other ranks do not come. A backward pass that
  // an exception has ended leaves exchanges in flight; if a rank gives them up, its group cannot be used any more.
  void drain();

 private:
  class Registered;

  // A future of the backward pass in progress.
  struct Exchange {
    size_t bucket;
    c10::intrusive_ptr<Future> future;
  };

  c10::intrusive_ptr<Future> run(c10d::GradBucket& bucket);
  c10::intrusive_ptr<Future> begin(c10d::GradBucket& bucket);
  std::vector<Exchange> take_exchanges();
  void end_pass();

  const std::shared_ptr<hooks::CommHook> hook_;
  const Options options_;
  size_t delayed_buckets_ = 0;  // How many reduce_delayed hands over; 0 outside it.
  size_t next_delayed_ = 0;
  std::mutex mutex_;  // A DistributedDataParallel may be destroyed while a backward pass runs on another thread.
  std::vector<Exchange> exchanges_;
};

}  // namespace narrowcast
