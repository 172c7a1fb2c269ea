#include "trainer/ddp/reducer/bucket_exchanges.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>

#include <condition_variable>
#include <exception>
#include <string>
#include <utility>

#include "ops/common/backend_errors.h"

namespace narrowcast {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatienceWhileUnwinding{5};

// Copies the bucket, with another number. The constructor needs the layout, which cannot be read: parameters lie one
// after the other.
c10d::GradBucket numbered(const c10d::GradBucket& bucket, size_t index, size_t buckets) {
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  std::vector<size_t> offsets;
  std::vector<size_t> lengths;
  std::vector<c10::IntArrayRef> sizes;
  size_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    offsets.push_back(offset);
    lengths.push_back(static_cast<size_t>(parameter.numel()));
    sizes.push_back(parameter.sizes());
    offset += lengths.back();
  }
  return c10d::GradBucket(index, buckets, bucket.getBuffer(), std::move(offsets), std::move(lengths), std::move(sizes),
                          parameters, std::nullopt);
}

// Whether `future` is completed by `then`. ivalue::Future::wait has no limit, and also waits for the GPU.
bool is_completed_by(c10::ivalue::Future& future, std::optional<Clock::time_point> then) {
  if (future.completed()) {
    return true;
  }
  struct Completion {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_there = false;
  };
  const auto completion = std::make_shared<Completion>();  // The callback may run long after this function returns.
  future.addCallback(
      [completion](c10::ivalue::Future& /*future*/) {
        const std::lock_guard<std::mutex> lock(completion->mutex);
        completion->is_there = true;
        completion->changed.notify_all();
      },
      /*uses_future=*/false);
  std::unique_lock<std::mutex> lock(completion->mutex);
  const auto is_there = [&] { return completion->is_there; };
  if (!then.has_value()) {
    completion->changed.wait(lock, is_there);
    return true;
  }
  return completion->changed.wait_until(lock, *then, is_there);
}

std::optional<Clock::time_point> from_now(std::optional<milliseconds> limit) {
  return limit ? std::optional(Clock::now() + *limit) : std::nullopt;
}

}  // namespace

// The hook object that a Reducer owns.
class BucketExchanges::Registered final : public c10d::CommHookInterface {
 public:
  explicit Registered(std::shared_ptr<BucketExchanges> exchanges) : exchanges_(std::move(exchanges)) {}

  c10::intrusive_ptr<Future> runHook(c10d::GradBucket& bucket) override { return exchanges_->run(bucket); }
  at::Tensor parseHookResult(const c10::IValue& result) override { return exchanges_->hook_->parseHookResult(result); }

 private:
  const std::shared_ptr<BucketExchanges> exchanges_;
};

BucketExchanges::BucketExchanges(std::shared_ptr<hooks::CommHook> hook, Options options)
    : hook_(std::move(hook)), options_(std::move(options)) {}

void BucketExchanges::register_with(c10d::Reducer& reducer) {
  reducer.register_comm_hook(std::make_unique<Registered>(shared_from_this()));
}

void BucketExchanges::reduce_delayed(c10d::Reducer& reducer) {
  delayed_buckets_ = reducer.get_grad_buckets(/*return_zero_tensors=*/false).size();
  next_delayed_ = 0;
  const auto leave = c10::make_scope_exit([this] { delayed_buckets_ = 0; });
  reducer.delay_all_reduce();
}

// After the last bucket the Reducer waits for all futures, without a limit. In a delayed reduction it waits at once;
// else at the end of the backward pass, in a callback that it is about to queue. The callback queued here runs before
// it.
c10::intrusive_ptr<BucketExchanges::Future> BucketExchanges::run(c10d::GradBucket& bucket) {
  if (delayed_buckets_ > 0) {
    c10d::GradBucket own = numbered(bucket, next_delayed_++, delayed_buckets_);
    auto future = begin(own);
    if (own.isLast()) {
      end_pass();
    }
    return future;
  }
  const bool holds = holds_until_last_ && !bucket.isLast();
  if (!holds) begin_held();
  auto future = holds ? hold(bucket) : begin(bucket);
  if (bucket.isLast()) {
    torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->end_pass(); });
  }
  return future;
}

c10::intrusive_ptr<BucketExchanges::Future> BucketExchanges::begin(c10d::GradBucket& bucket) {
  if (options_.before_bucket) {
    options_.before_bucket(bucket);
  }
  auto future = hook_->runHook(bucket);
  TORCH_CHECK_VALUE(future.defined(), "hook ", hook_->name(), ": returned no future for bucket ", bucket.getIndex());
  const std::lock_guard<std::mutex> lock(mutex_);
  exchanges_.push_back({bucket.getIndex(), future});
  if (bucket.getIndex() == 0) last_buckets_.clear();
  last_buckets_.push_back(bucket.getParameters());
  return future;
}

std::vector<std::vector<at::Tensor>> BucketExchanges::last_buckets() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_buckets_;
}

// An earlier pass that an exception has ended may have left buckets behind.
c10::intrusive_ptr<BucketExchanges::Future> BucketExchanges::hold(const c10d::GradBucket& bucket) {
  if (bucket.getIndex() == 0) held_.clear();
  const size_t further = 1;  // At least the last bucket is still to come.
  auto future = c10::make_intrusive<Future>(c10::AnyType::get());
  held_.push_back({numbered(bucket, bucket.getIndex(), bucket.getIndex() + 1 + further), future});
  return future;
}

void BucketExchanges::begin_held() {
  for (Held& each : std::exchange(held_, {})) {
    begin(each.bucket)
        ->addCallback(
            [future = each.future](Future& averaged) {
              if (averaged.hasError()) {
                future->setError(averaged.exception_ptr());
              } else {
                future->markCompleted(averaged.constValue());
              }
            },
            /*uses_future=*/false);
  }
}

std::vector<BucketExchanges::Exchange> BucketExchanges::take_exchanges() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(exchanges_, {});
}

void BucketExchanges::end_pass() {
  for (const Exchange& exchange : take_exchanges()) {
    if (!is_completed_by(*exchange.future, from_now(options_.limit))) {
      throw_backend_error(options_.rank, c10::str("hook ", hook_->name()),
                          c10::str("timed out: the future of bucket ", exchange.bucket, " was not completed within ",
                                   options_.limit->count(), " ms"));
    }
  }
}

void BucketExchanges::drain() {
  const bool unwinds = std::uncaught_exceptions() > 0;
  const auto last = from_now(kPatienceWhileUnwinding);
  for (const Exchange& exchange : take_exchanges()) {
    if (!is_completed_by(*exchange.future, unwinds ? last : from_now(options_.limit))) {
      return;
    }
  }
}

}  // namespace narrowcast
