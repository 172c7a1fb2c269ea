#include "trainer/ddp/process_group/change_watch.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "trainer/ddp/process_group/backends.h"

namespace narrowcast {
namespace {

constexpr std::chrono::milliseconds kBetweenChangeLooks{1000};
constexpr std::chrono::milliseconds kPatienceWithTheThread{500};

}  // namespace

// The thread and its owner share it.
struct ChangeWatch::State {
  State(std::shared_ptr<rendezvous::JobStore> store, c10::intrusive_ptr<c10d::Backend> backend)
      : job(std::move(store)), gloo(std::move(backend)) {}

  void run() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kBetweenChangeLooks, [this] { return stop; })) {
      const bool announces = std::exchange(is_asked, false);
      lock.unlock();
      const Change change = look(announces);
      lock.lock();
      if (change == Change::kLoss && !stop) {
        close_gloo_connections(*gloo);
        break;
      }
      newcomers = change == Change::kNewcomer;
    }
    ended = true;
    changed.notify_all();
  }

  using Change = rendezvous::JobStore::Change;

  Change look(bool announces) const {
    try {
      if (announces) {
        job->announce_regroups();
      }
      return job->change();
    } catch (const std::exception&) {
      return Change::kNone;  // The store may answer again. If it is gone, the launcher ends this process.
    }
  }

  const std::shared_ptr<rendezvous::JobStore> job;
  const c10::intrusive_ptr<c10d::Backend> gloo;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;
  bool newcomers = false;
  bool was_asked = false;
  bool is_asked = false;  // for the first time
};

ChangeWatch::ChangeWatch(std::shared_ptr<rendezvous::JobStore> job, c10::intrusive_ptr<c10d::Backend> gloo)
    : state_(std::make_shared<State>(std::move(job), std::move(gloo))), thread_([state = state_] { state->run(); }) {}

ChangeWatch::~ChangeWatch() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  const bool has_ended = state_->changed.wait_for(lock, kPatienceWithTheThread, [this] { return state_->ended; });
  lock.unlock();
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool ChangeWatch::has_newcomers() {
  const std::lock_guard lock(state_->mutex);
  state_->is_asked = !std::exchange(state_->was_asked, true) || state_->is_asked;
  return state_->newcomers;
}

}  // namespace narrowcast
