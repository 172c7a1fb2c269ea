#include "trainer/ddp/rendezvous/heartbeats.h"

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "trainer/base/network/addresses.h"
#include "trainer/base/network/answering_store.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatienceWithTheStore{5000};
constexpr milliseconds kPatienceWithSigns{500};  // at the end

}  // namespace

JobKeys JobKeys::reach(const WorkerEnv& env, milliseconds patience) {
  network::StoreAddress place = {.host = env.master_addr, .port = env.master_port};
  std::function<bool()> moved;
  if (!env.store_file.empty()) {
    place = network::read_store_file(env.store_file).value_or(place);
    moved = [file = env.store_file, place] { return network::store_has_moved(file, place); };
  }
  const network::TcpStorePtr store = network::reach_tcp_store(place.host, place.port, patience, moved);
  auto answering = c10::make_intrusive<network::AnsweringStore>(store, network::host_and_port(place.host, place.port),
                                                                patience, moved);
  return {.address = place,
          .keys = c10::make_intrusive<c10d::PrefixStore>(job_prefix(env.run_id), std::move(answering))};
}

bool JobKeys::have_moved(const WorkerEnv& env) const {
  return !env.store_file.empty() && network::store_has_moved(env.store_file, address);
}

// The thread and its owner share it.
struct Heartbeats::State {
  State(const WorkerEnv& worker, milliseconds pause)
      : env(worker),
        every(pause),
        key(worker.node > 0 ? signs_key(worker.node, worker.rank_on_node) : signs_key(0, worker.rank)) {}

  void run() {
    std::optional<JobKeys> job;
    while (!stops_within(give(job) ? every : milliseconds(0))) {
    }
    if (job && is_over) {
      end(*job);
    }
    const std::lock_guard lock(mutex);
    has_ended = true;
    changed.notify_all();
  }

  // Returns whether to pause: a sign was given, or it could not be given for a while.
  bool give(std::optional<JobKeys>& job) const {
    try {
      if (!job) {
        job = JobKeys::reach(env, kPatienceWithTheStore);
      }
      job->keys->add(key, 1);
      return true;
    } catch (const std::exception&) {
      const bool has_moved = job && job->have_moved(env);
      job.reset();
      return !has_moved;
    }
  }

  void end(const JobKeys& job) const {
    try {
      job.keys->deleteKey(key);
    } catch (const std::exception&) {
      // The launcher sees the end of this process.
    }
  }

  bool stops_within(milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [this] { return stop; });
  }

  const WorkerEnv env;
  const milliseconds every;
  const std::string key;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool is_over = false;  // Set before `stop`.
  bool has_ended = false;
};

Heartbeats::Heartbeats(const WorkerEnv& env, milliseconds every) {
  if (env.recovers_in_place && !is_alone(env)) {
    state_ = std::make_shared<State>(env, every);
    thread_ = std::thread([state = state_] { state->run(); });
  }
}

Heartbeats::~Heartbeats() {
  if (state_ == nullptr) {
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->is_over = std::uncaught_exceptions() == 0;
  state_->stop = true;
  state_->changed.notify_all();
  const bool has_ended = state_->changed.wait_for(lock, kPatienceWithSigns, [this] { return state_->has_ended; });
  lock.unlock();
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace narrowcast::rendezvous
