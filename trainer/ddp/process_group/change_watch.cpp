#include "trainer/ddp/process_group/change_watch.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "trainer/base/network/places.h"
#include "trainer/ddp/backends/gloo_backend.h"
#include "trainer/ddp/rendezvous/heartbeats.h"

namespace narrowcast {
namespace {

constexpr std::chrono::milliseconds kPatienceWithTheThread{500};
constexpr std::chrono::milliseconds kPatienceWithTheJob{10000};

}  // namespace

// Each look of each rank is up to four requests. So the store gets at most 4000 per second from all ranks, which take
// it about 5% of a processor (10 to 15 us each, LibTorch 2.11, November 2026).
std::chrono::milliseconds between_change_looks(int64_t ranks) {
  return std::chrono::milliseconds(std::clamp<int64_t>(ranks, 200, 1000));
}

// The thread and its owner share it.
struct ChangeWatch::State {
  State(std::shared_ptr<rendezvous::JobStore> store, c10::intrusive_ptr<c10d::Backend> backend)
      : job(std::move(store)), gloo(std::move(backend)) {}

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait_for(lock, between_change_looks(gloo->getSize()), [this] { return stop || is_asked; });
      if (stop) {
        break;
      }
      const bool announces = std::exchange(is_asked, false);
      const auto newcomers_to_take =
          keeps_newcomers_out ? rendezvous::JobStore::Newcomers::kReplaceLost : rendezvous::JobStore::Newcomers::kJoin;
      const int64_t divided = ranks_divide;
      lock.unlock();
      if (announces) {
        announce(newcomers_to_take, divided);
      }
      const Change change = look();
      lock.lock();
      if (change == Change::kLoss && !stop) {
        newcomers = gloo->getSize() == 1;  // It has no connection whose end would make it meet the others.
        lock.unlock();
        close_gloo_connections(*gloo);
        lock.lock();
        break;
      }
      newcomers = change == Change::kNewcomer;
    }
    ended = true;
    changed.notify_all();
  }

  using Change = rendezvous::JobStore::Change;

  // The store may not answer now. If it is gone, the launcher ends this process, or the store moves.
  Change look() const {
    try {
      return job->change();
    } catch (const std::exception&) {
      return Change::kNone;
    }
  }

  void announce(rendezvous::JobStore::Newcomers newcomers_to_take, int64_t divided) const {
    try {
      job->announce_regroups(newcomers_to_take, divided);
    } catch (const std::exception&) {
      // Then all ranks start again when nodes come or are lost.
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
  bool keeps_newcomers_out = false;
  int64_t ranks_divide = 0;
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

void ChangeWatch::keep_newcomers_out() {
  const std::lock_guard lock(state_->mutex);
  state_->keeps_newcomers_out = true;
}

void ChangeWatch::let_ranks_divide(int64_t number) {
  const std::lock_guard lock(state_->mutex);
  state_->ranks_divide = number;
}

void check_begins_together(const WorkerEnv& env, const std::string& work) {
  if (!env.recovers_in_place || env.node == 0) {
    return;
  }
  const auto job = rendezvous::JobKeys::reach(env, kPatienceWithTheJob);
  TORCH_CHECK_VALUE(!job.keys->check({rendezvous::kRegroups}), work,
                    ": this node comes to a job that is already training, and cannot join it");
}

bool ChangeWatch::has_newcomers() {
  const std::lock_guard lock(state_->mutex);
  if (!std::exchange(state_->was_asked, true)) {
    state_->is_asked = true;
    state_->changed.notify_all();
  }
  return state_->newcomers;
}

void keep_newcomers_out(const ProcessGroupScope& scope) {
  if (scope.changes_ != nullptr) {
    scope.changes_->keep_newcomers_out();
  }
}

void let_ranks_divide(const ProcessGroupScope& scope, int64_t number) {
  if (scope.changes_ != nullptr) {
    scope.changes_->let_ranks_divide(number);
  }
}

bool has_newcomers(const ProcessGroupScope& scope) {
  return scope.changes_ != nullptr && scope.changes_->has_newcomers();
}

}  // namespace narrowcast
