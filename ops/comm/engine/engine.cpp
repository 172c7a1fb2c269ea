#include "ops/comm/engine/engine.h"

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/common/error_message.h"
#include "ops/common/per_group.h"

namespace narrowcast::engine {
namespace {

c10::intrusive_ptr<c10d::Backend> cpu_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  TORCH_CHECK_VALUE(group, "process_group must be a process group, but is null");
  const auto devices = group->getDeviceTypes();
  TORCH_CHECK_VALUE(std::any_of(devices.begin(), devices.end(), [](c10::Device device) { return device.is_cpu(); }),
                    "process_group (", group->getBackendName(), ") has no backend for CPU tensors");
  return group->getBackend(c10::DeviceType::CPU);
}

}  // namespace

// A job passes these stages: submit puts it into queued_. The thread moves it to in_flight_, starts it, advances it,
// finishes the oldest in flight and completes its future. While a job waits for the network, the next one starts.
class Worker {
 public:
  Worker(c10::intrusive_ptr<c10d::Backend> backend, Carrier carrier, std::shared_ptr<std::atomic<int64_t>> exchanges)
      : backend_(std::move(backend)), carrier_(std::move(carrier)), started_(std::move(exchanges)) {}

  c10::intrusive_ptr<c10::ivalue::Future> submit(std::shared_ptr<Job> job);

  // Body of the thread. Returns after stop, when all futures are completed.
  void run();

  // Gives up unfinished jobs and makes run return.
  void stop();

  // Engine::break_off.
  void break_off(const std::string& why);

  // Engine::send_over.
  void send_over(Carrier carrier);

  // Engine::is_idle.
  bool is_idle();

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

  // Gives up an exchange if the engine has stopped or is broken off. The caller holds mutex_.
  void give_up_if_over(InFlight& exchange) const;
  // The caller holds mutex_.
  size_t most_in_flight() const { return carrier_.most_in_flight; }
  bool wait_for_job();
  std::shared_ptr<InFlight> take_queued();
  bool start_queued();
  void start_all_queued();
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
  std::mutex mutex_;  // Guards carrier_, queued_, in_flight_ (as a list), stopping_ and broken_off_.
  Carrier carrier_;
  std::condition_variable changed_;
  std::deque<Submission> queued_;
  std::deque<std::shared_ptr<InFlight>> in_flight_;
  bool stopping_ = false;
  std::string broken_off_;  // Why; empty if it is not.
  const std::shared_ptr<std::atomic<int64_t>> started_;
  // Used by the thread only.
  std::string first_failure_;
};

// State of a backend, shared by all its groups. It is kept while a group or an engine of the backend lives. These hold
// the backend, so no other backend can have its address in the meantime.
struct Engine::KnownBackend {
  explicit KnownBackend(const c10d::Backend* known) : backend(known) {}

  const c10d::Backend* const backend;
  std::mutex mutex;                   // Guards the two members below.
  std::weak_ptr<Engine> engine = {};  // The latest engine.
  Carrier carrier = {};               // All its engines use it.
  // The next engine continues the count, because ranks may make new engines at different times.
  const std::shared_ptr<std::atomic<int64_t>> exchanges = std::make_shared<std::atomic<int64_t>>(0);
};

struct Engine::BackendOfGroup {
  std::shared_ptr<KnownBackend> known;
};

std::shared_ptr<Engine> Engine::for_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  // Never destroyed: a forked child that exits must not wait for a carrier's thread, which it does not have.
  static PerGroup<BackendOfGroup>& backends = *std::make_unique<PerGroup<BackendOfGroup>>().release();
  auto backend = cpu_backend(group);
  const auto of_group = backends.of(group, [&](const PerGroup<BackendOfGroup>::Values& others) {
    const auto same = std::ranges::find(others, backend.get(), [](const auto& other) { return other->known->backend; });
    return std::make_shared<BackendOfGroup>(
        BackendOfGroup{same != others.end() ? (*same)->known : std::make_shared<KnownBackend>(backend.get())});
  });
  KnownBackend& known = *of_group->known;
  const std::lock_guard<std::mutex> lock(known.mutex);
  auto engine = known.engine.lock();
  if (!engine) {
    engine = std::make_shared<Engine>(Key{}, std::move(backend), of_group);
    known.engine = engine;
  }
  return engine;
}

Engine::Engine(Key, c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<BackendOfGroup> of_group)
    : of_group_(std::move(of_group)),
      worker_(std::make_shared<Worker>(std::move(backend), of_group_->known->carrier, of_group_->known->exchanges)) {
  thread_ = std::thread([worker = worker_] {
    c10::setThreadName("nc_engine");
    worker->run();
  });
}

Engine::~Engine() {
  worker_->stop();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // A callback released the last reference. The thread ends after the callback.
  } else {
    thread_.join();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Engine::submit(std::shared_ptr<Job> job) {
  TORCH_CHECK_VALUE(job, "job must not be null");
  return worker_->submit(std::move(job));
}

void Engine::break_off(const std::string& why) { worker_->break_off(why); }

void Engine::send_over(Carrier carrier) {
  const std::lock_guard<std::mutex> lock(of_group_->known->mutex);
  worker_->send_over(carrier);
  std::swap(of_group_->known->carrier, carrier);  // The old one ends after the lock is released.
}

Carrier Engine::carrier() const {
  const std::lock_guard<std::mutex> lock(of_group_->known->mutex);
  return of_group_->known->carrier;
}

bool Engine::is_idle() const { return worker_->is_idle(); }

namespace {

using c10::ivalue::Future;

// Runs a function of the job.
template <class Function>
decltype(auto) run_or_give_up(Job& job, const Function& function) {
  try {
    return function();
  } catch (...) {
    job.give_up();
    throw;
  }
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return error_message(exception);
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

c10::intrusive_ptr<Future> Worker::submit(std::shared_ptr<Job> job) {
  auto future = c10::make_intrusive<Future>(c10::TensorType::get());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queued_.push_back({std::move(job), future});
    if (in_flight_.size() < most_in_flight()) {
      for (const auto& exchange : in_flight_) exchange->transport.interrupt_wait();
    }
  }
  changed_.notify_one();
  return future;
}

void Worker::run() {
  while (wait_for_job()) {
    start_queued();
    advance_in_flight();
    finish_oldest();
  }
}

void Worker::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    for (const auto& exchange : in_flight_) give_up_if_over(*exchange);
  }
  changed_.notify_one();
}

void Worker::break_off(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (broken_off_.empty()) broken_off_ = why;
  for (const auto& exchange : in_flight_) give_up_if_over(*exchange);
}

bool Worker::is_idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return queued_.empty() && in_flight_.empty();
}

void Worker::send_over(Carrier carrier) {
  const std::lock_guard<std::mutex> lock(mutex_);
  carrier_ = std::move(carrier);
}

void Worker::give_up_if_over(InFlight& exchange) const {
  if (!broken_off_.empty()) {
    exchange.transport.give_up(broken_off_);
  } else if (stopping_) {
    exchange.transport.give_up(c10::str("rank ", backend_->getRank(), ": ", exchange.name,
                                        " was cancelled, because its process group was destroyed on this rank"));
  }
}

// Waits until there is a job. Returns false if there will never be one.
bool Worker::wait_for_job() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !in_flight_.empty() || !queued_.empty() || stopping_; });
  return !in_flight_.empty() || !queued_.empty();
}

// Moves the next job from the queue to the jobs in flight. Returns null if the queue is empty, as many jobs as possible
// are in flight, or a job in flight does not let the next one start.
std::shared_ptr<Worker::InFlight> Worker::take_queued() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (queued_.empty() || in_flight_.size() >= most_in_flight()) return nullptr;
  if (!in_flight_.empty() && !in_flight_.back()->job->lets_next_start()) return nullptr;
  TransportOptions options{carrier_.backend == nullptr ? backend_ : carrier_.backend, queued_.front().job->name(),
                           (*started_)++, [this] { start_all_queued(); }, most_in_flight()};
  in_flight_.push_back(std::make_shared<InFlight>(std::move(queued_.front()), std::move(options)));
  queued_.pop_front();
  give_up_if_over(*in_flight_.back());
  return in_flight_.back();
}

// Returns whether a job has started.
bool Worker::start_queued() {
  const auto exchange = take_queued();
  if (!exchange) return false;
  try {
    throw_if_failed(exchange->name);
    run_or_give_up(*exchange->job, [&] { exchange->job->start(exchange->transport); });
    exchange->advances_left = exchange->job->advances();
  } catch (...) {
    exchange->error = std::current_exception();
  }
  return true;
}

void Worker::start_all_queued() {
  while (start_queued()) {
  }
}

std::shared_ptr<Worker::InFlight> Worker::oldest() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_flight_.front();
}

std::shared_ptr<Worker::InFlight> Worker::second() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_flight_.size() > 1 ? in_flight_[1] : nullptr;
}

void Worker::advance(InFlight& exchange) {
  exchange.advanced = true;
  --exchange.advances_left;
  try {
    throw_if_failed(exchange.name);
    run_or_give_up(*exchange.job, [&] { exchange.job->advance(exchange.transport); });
  } catch (...) {
    exchange.error = std::current_exception();
  }
  start_queued();
}

// Advances the oldest exchange until only its finish is left. The exchange after it also makes its first advance in
// two cases: between advances of the oldest if it does not block, and after the last one if it also has one advance
// left. If the oldest has only its finish left at the beginning, nothing advances: it finishes while the messages of
// the next one are in flight.
void Worker::advance_in_flight() {
  const auto first = oldest();
  if (first->advances_left == 0) return;
  while (first->advances_left > 0 && !first->error) {
    advance(*first);
    const auto next = second();
    if (!next || next->advanced || next->error || first->error || next->advances_left == 0) continue;
    const bool waits_in_step = first->advances_left == 0 && next->advances_left == 1;
    if (waits_in_step || next->job->is_ready()) advance(*next);
  }
}

void Worker::finish_oldest() {
  auto exchange = in_flight_.front();
  const auto future = exchange->future;
  at::Tensor value;
  std::exception_ptr error;
  try {
    value = run_to_end(*exchange);
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_flight_.pop_front();
  }
  exchange.reset();  // The job may be submitted again as soon as its future is completed.
  complete(*future, std::move(value), error);
}

at::Tensor Worker::run_to_end(InFlight& exchange) const {
  throw_if_failed(exchange.name);
  if (exchange.error) std::rethrow_exception(exchange.error);
  at::Tensor value = run_or_give_up(*exchange.job, [&] { return exchange.job->finish(exchange.transport); });
  exchange.transport.wait_sends();
  return value;
}

// If a callback of the future throws, the exception arrives here and counts as a failure of the exchange.
void Worker::complete(Future& future, at::Tensor value, const std::exception_ptr& error) {
  try {
    if (error) {
      remember_failure(error);
      future.setError(error);
    } else {
      future.markCompleted(std::move(value));
    }
  } catch (...) {
    remember_failure(std::current_exception());
  }
}

void Worker::remember_failure(const std::exception_ptr& error) {
  if (first_failure_.empty()) first_failure_ = message_of(error);
}

void Worker::throw_if_failed(const std::string& exchange) const {
  TORCH_CHECK_WITH(DistBackendError, first_failure_.empty(), "rank ", backend_->getRank(), ": ", exchange,
                   " was cancelled, because an earlier exchange failed: ", first_failure_);
}

}  // namespace narrowcast::engine
