#include "trainer/ddp/rendezvous/heartbeat_watch.h"

#include <charconv>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "trainer/base/network/tcp_store.h"
#include "trainer/ddp/rendezvous/heartbeats.h"

namespace narrowcast::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kLateLooks = 2;       // A look may just miss a heartbeat: then the rank may stand still.
constexpr int64_t kLooksOfSilence = 3;  // and then it does
constexpr milliseconds kPatienceWithAWatch{500};

int64_t read_signs(const std::string& text) {
  int64_t count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

}  // namespace

std::vector<int64_t> SilenceOfOthers::look(const Signs& signs, const Looks& looks) {
  std::vector<int64_t> silent;
  for (int64_t distance = 1; distance < options_.world_size; ++distance) {
    const int64_t rank = (options_.rank + distance) % options_.world_size;
    Seen& seen = seen_[rank];
    const int64_t now = signs(rank);
    seen.unchanged = now == seen.signs && now > 0 ? seen.unchanged + 1 : 0;
    seen.signs = now;
    if (now > 0 && seen.unchanged < kLateLooks && looks(rank)) {
      break;
    }
    if (seen.unchanged >= kLooksOfSilence && seen.unchanged * options_.look_every >= options_.silence) {
      silent.push_back(rank);
    }
  }
  return silent;
}

// The thread and its owner share it.
struct HeartbeatWatch::State {
  State(std::shared_ptr<const JobStore> store, const SilenceOfOthers::Options& watched)
      : job(std::move(store)), options(watched), others(watched) {}

  void run() {
    std::optional<JobKeys> connection;
    while (!stops_within(options.look_every)) {
      try {
        if (!connection) {
          connection = JobKeys::reach(job->env(), options.silence);
        }
        look(*connection->keys);
      } catch (const std::exception&) {
        connection.reset();  // If the store has moved, all ranks meet anew.
      }
    }
    const std::lock_guard lock(mutex);
    has_ended = true;
    changed.notify_all();
  }

  // To add 0 would bring back the keys of ranks that are gone.
  void look(c10d::Store& keys) {
    const auto signs = [&](int64_t other) {
      return read_signs(network::value_of(keys, job->signs_key_of(other)).value_or(""));
    };
    const auto looks = [&](int64_t other) { return keys.check({job->ready_key_of(other)}); };
    for (const int64_t rank : others.look(signs, looks)) {
      const JobStore::Entry report = job->report_of_silence(rank);
      keys.set(report.key, report.value);
    }
  }

  bool stops_within(milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [this] { return stop; });
  }

  const std::shared_ptr<const JobStore> job;
  const SilenceOfOthers::Options options;
  SilenceOfOthers others;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool has_ended = false;
};

HeartbeatWatch::HeartbeatWatch(std::shared_ptr<const JobStore> job, milliseconds silence, milliseconds look_every) {
  const WorkerEnv& env = job->env();
  const SilenceOfOthers::Options options = {
      .rank = env.rank, .world_size = env.world_size, .look_every = look_every, .silence = silence};
  state_ = std::make_shared<State>(std::move(job), options);
  thread_ = std::thread([state = state_] { state->run(); });
}

HeartbeatWatch::~HeartbeatWatch() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  const bool has_ended = state_->changed.wait_for(lock, kPatienceWithAWatch, [this] { return state_->has_ended; });
  lock.unlock();
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace narrowcast::rendezvous
