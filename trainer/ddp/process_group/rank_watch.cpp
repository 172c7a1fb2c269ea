#include "trainer/ddp/process_group/rank_watch.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <narrowcast/network_errors.h>
#include "trainer/base/network/answering_store.h"

namespace narrowcast {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kPause{20};  // between two polls for answers
constexpr milliseconds kPatienceWithALook{500};
constexpr milliseconds kUnansweringStore{2000};  // A store that takes longer counts as dead.

std::string question_key(int64_t rank) { return c10::str("watch/question/", rank); }
std::string answer_key(int64_t rank) { return c10::str("watch/answer/", rank); }
std::string sign_key(int64_t rank) { return c10::str("watch/sign/", rank); }
std::string end_key(int64_t rank) { return c10::str("watch/ended/", rank); }
constexpr const char* kSilentKey = "watch/silent";
constexpr const char* kInformedKey = "watch/informed";  // number of ranks that know it
constexpr int64_t kReconnects = 3;                      // attempts to reach a store whose connection broke
constexpr int64_t kLeastLooks = 3;                      // A poll may just miss a heartbeat, and the next may be late.

// The value of a key; empty if it does not exist.
std::string read(const StorePtr& store, const std::string& key) {
  return store->check({key}) ? store->get_to_str(key) : "";
}

// The rank that some watch has found silent.
std::optional<int64_t> read_silent_rank(const StorePtr& store, int64_t world_size) {
  const std::string text = read(store, kSilentKey);
  int64_t rank = -1;
  const char* const end = text.data() + text.size();
  const bool is_number = std::from_chars(text.data(), end, rank).ptr == end;
  return is_number && rank >= 0 && rank < world_size ? std::optional(rank) : std::nullopt;
}

// An answer is "NUMBER TEXT", so that each answer differs from the one before.
std::string text_of(const std::string& answer) { return answer.substr(answer.find(' ') + 1); }

std::map<int64_t, std::string> answers_of(const StorePtr& store, const std::vector<int64_t>& ranks) {
  std::map<int64_t, std::string> answers;
  for (const int64_t rank : ranks) {
    answers[rank] = read(store, answer_key(rank));
  }
  return answers;
}

// Another rank that asks at the same time also makes ranks answer. So only a change of an answer counts.
std::map<int64_t, std::string> ask(const StorePtr& store, const std::vector<int64_t>& ranks, milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  const std::map<int64_t, std::string> before = answers_of(store, ranks);
  for (const int64_t rank : ranks) {
    store->set(question_key(rank), "?");
  }
  std::map<int64_t, std::string> fresh;
  while (fresh.size() < ranks.size() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
    for (const auto& [rank, answer] : answers_of(store, ranks)) {
      if (answer != before.at(rank)) {
        fresh[rank] = text_of(answer);
      }
    }
  }
  return fresh;
}

std::string describe(const std::vector<int64_t>& ranks, const std::map<int64_t, std::string>& answers) {
  std::vector<std::string> texts;
  for (const int64_t rank : ranks) {
    const auto found = answers.find(rank);
    texts.push_back(c10::str(
        "rank ", rank, " ", found == answers.end() ? "does not answer (stopped, hung or unreachable)" : found->second));
  }
  return c10::Join("; ", texts);
}

// Returns body(), or `otherwise` if it throws or does not return within `limit`. A call to a store waits for its server
// without a limit.
template <class Result>
Result within(milliseconds limit, const std::function<Result()>& body, Result otherwise) {
  try {
    return network::within(limit, body).value_or(otherwise);
  } catch (const std::exception&) {
    return otherwise;
  }
}

// Writes this rank's heartbeats and checks another rank's. Time is counted in polls, so that a process that was stopped
// itself does not blame others. A rank that has sent no heartbeat yet does not count as silent.
class Signs {
 public:
  explicit Signs(const RankWatch::Options& options) : options_(options) {}

  void give(const StorePtr& store) const { store->add(sign_key(options_.rank), 1); }

  // Whether the watched rank has fallen silent.
  bool are_missing(const StorePtr& store) {
    const int64_t signs = store->add(sign_key(options_.watched), 0);
    unchanged_ = signs == last_ ? unchanged_ + 1 : 0;
    last_ = signs;
    return signs > 0 && unchanged_ >= kLeastLooks && unchanged_ * options_.look_every >= options_.silence &&
           !store->check({end_key(options_.watched)});
  }

 private:
  const RankWatch::Options options_;
  int64_t last_ = 0;
  int64_t unchanged_ = 0;  // polls
};

// A lost rank, and whether this rank has found it silent or read of it.
struct Loss {
  int64_t rank;
  bool is_found_here;
};

}  // namespace

// State that the thread and its owner share; it lives as long as either.
struct RankWatch::Answering {
  // kBroken: it is not known yet whether the store's server has ended.
  enum class StoreConnection { kOpen, kBroken };

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool look_now = false;
  bool has_failed = false;  // Then no end is written: if this rank hangs, the others notice its silence.
  bool ended = false;
  StoreConnection connection = StoreConnection::kOpen;
  std::optional<int64_t> silent = {};  // the rank passed to on_silence
  int64_t answers = 0;                 // to questions, over all connections
  int64_t looks = 0;
  int64_t unanswered = 0;  // polls of watch_store since the store has answered

  // Also returns early if a poll is requested.
  bool stops_within(milliseconds time) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, time, [&] { return stop || look_now; });
    look_now = false;
    return stop;
  }

  // Records the lost rank. Returns whether on_silence must be called: not if that was done or the watch has ended.
  bool find(int64_t lost) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (stop || silent.has_value()) {
      return false;
    }
    silent = lost;
    return true;
  }

  bool has_found_loss() {
    const std::lock_guard<std::mutex> lock(mutex);
    return silent.has_value();
  }

  // Informs the other ranks. A rank that serves the store or has found a rank silent stays until all others know it,
  // for at most kLeastLooks polls. If it ended earlier, the others could not read the store, or would count it as the
  // lost rank.
  void inform_others(const Loss& loss, const StorePtr& store, const Options& options) {
    try {
      if (loss.is_found_here) {
        store->set(kSilentKey, c10::str(loss.rank));
      }
      store->add(kInformedKey, 1);
      const bool stays = loss.is_found_here || (options.rank == 0 && options.rank_0_serves);
      const auto deadline = Clock::now() + kLeastLooks * options.look_every;
      while (stays && store->add(kInformedKey, 0) < options.world_size - 1 && Clock::now() < deadline &&
             !stops_within(kPause)) {
      }
    } catch (const std::exception&) {
      // The process that serves the store has ended, so all ranks know of the loss.
    }
  }

  void look_for_signs(Signs& signs, const StorePtr& store, const Options& options) {
    signs.give(store);
    if (has_found_loss()) {
      return;
    }
    const auto lost = options.on_all_ranks ? read_silent_rank(store, options.world_size) : std::nullopt;
    const Loss loss{lost.value_or(options.watched), !lost.has_value() && signs.are_missing(store)};
    if (lost == options.rank || (!lost.has_value() && !loss.is_found_here)) {
      return;
    }
    if (find(loss.rank)) {
      if (options.on_all_ranks) {
        inform_others(loss, store, options);
      }
      options.on_silence(loss.rank);
    }
  }

  void answer_questions(const StorePtr& store, const Options& options) {
    const bool looks_for_signs = options.silence.count() > 0;
    Signs signs(options);
    while (!stops_within(options.look_every)) {
      if (looks_for_signs) {
        look_for_signs(signs, store, options);
      }
      if (store->check({question_key(options.rank)})) {
        store->deleteKey(question_key(options.rank));
        store->set(answer_key(options.rank), c10::str(answers++, " ", describe_current_step(options.rank)));
      }
      count_look();
    }
    if (looks_for_signs && !has_failed) {
      store->set(end_key(options.rank), "");
    }
  }

  void count_look() {
    const std::lock_guard<std::mutex> lock(mutex);
    ++looks;
    changed.notify_all();
  }

  // Checks whether the other thread gets answers from the store, for which that thread waits without a limit. It does
  // not use stops_within, because requests for a poll are meant for the other thread.
  void watch_store(const Options& options) {
    std::unique_lock<std::mutex> lock(mutex);
    int64_t last = -1;
    for (;;) {
      const bool has_answered =
          changed.wait_for(lock, options.look_every, [&] { return stop || ended || looks != last; });
      if (stop || ended) {
        return;
      }
      unanswered = has_answered || connection == StoreConnection::kBroken
                       ? 0
                       : unanswered + 1;  // A server that hangs breaks no connection.
      last = looks;
      if (unanswered >= kLeastLooks && unanswered * options.look_every >= options.silence) {
        lock.unlock();
        if (find(0)) {
          options.on_silence(0);
        }
        return;
      }
    }
  }

  void set_connection(StoreConnection state) {
    const std::lock_guard<std::mutex> lock(mutex);
    connection = state;
    changed.notify_all();
  }

  // A pause that only the end of the watch interrupts. Returns whether the watch ends.
  bool stops_after(milliseconds time) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, time, [&] { return stop; });
  }

  // Returns a connection that replaces a broken one, or null if the store is gone: its server has ended, and no rank
  // can ask any more.
  StorePtr reconnect(const StorePtr& broken, const Options& options) {
    set_connection(StoreConnection::kBroken);
    const milliseconds timeout = broken->getTimeout();
    broken->setTimeout(std::max(options.look_every, kPatienceWithALook));  // Limit of each attempt.
    StorePtr store;
    for (int64_t attempt = 0; store == nullptr && attempt < kReconnects && !stops_after(options.look_every);
         ++attempt) {
      // A server that is stopped accepts connections, and never answers.
      const std::function<StorePtr()> connect = [=, key = sign_key(options.rank)] {
        StorePtr next = broken->clone();
        next->check({key});
        next->setTimeout(timeout);
        return next;
      };
      store = within<StorePtr>(2 * std::max(options.look_every, kPatienceWithALook), connect, nullptr);
    }
    set_connection(StoreConnection::kOpen);
    return store;
  }

  // Whether to reconnect: counts connections in a row without a poll, of which there may be fewer than kReconnects.
  bool gets_on(int64_t& last_looks, int64_t& fruitless) {
    const std::lock_guard<std::mutex> lock(mutex);
    fruitless = looks == last_looks ? fruitless + 1 : 0;
    last_looks = looks;
    return fruitless < kReconnects;
  }

  void run(StorePtr store, const Options& options) {
    int64_t last_looks = 0;
    int64_t fruitless = 0;
    while (store != nullptr) {
      try {
        answer_questions(store, options);
        store = nullptr;
      } catch (const std::exception&) {
        store = gets_on(last_looks, fruitless) ? reconnect(store, options) : nullptr;
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

std::string text_of_silence(const LostRank& loss, milliseconds silence) {
  return c10::str("rank ", loss.rank, ": rank ", loss.lost, " is lost: it has sent no heartbeat for ",
                  silence.count() / 1000, " s");
}

RankWatch::RankWatch(const StorePtr& store, const Options& options)
    : store_(store), options_(options), answering_(std::make_shared<Answering>()) {
  if (options.silence.count() > 0) {
    Signs(options).give(store);  // At once: this rank may hang before the thread's first poll.
  }
  std::thread([answering = answering_, own = store->clone(), options] { answering->run(own, options); }).detach();
  if (options.rank_0_serves && options.rank != 0 && options.silence.count() > 0) {
    std::thread([answering = answering_, options] { answering->watch_store(options); }).detach();
  }
}

RankWatch::~RankWatch() {
  std::unique_lock<std::mutex> lock(answering_->mutex);
  answering_->stop = true;
  answering_->has_failed = std::uncaught_exceptions() > 0;
  answering_->changed.notify_all();
  answering_->changed.wait_for(lock, kUnansweringStore, [&] { return answering_->ended; });
}

std::string RankWatch::describe_others() const {
  std::vector<int64_t> others;
  for (int64_t rank = 0; rank < options_.world_size; ++rank) {
    if (rank != options_.rank) {
      others.push_back(rank);
    }
  }
  const StepScope scope(options_.rank, "a collective that timed out");
  const std::function<std::map<int64_t, std::string>()> body = [store = store_, others, patience = options_.patience] {
    return ask(store->clone(), others, patience);
  };
  return describe(others, within(options_.patience + kUnansweringStore, body, {}));
}

std::optional<int64_t> RankWatch::silent_rank() const {
  Answering& watch = *answering_;
  std::unique_lock<std::mutex> lock(watch.mutex);
  if (watch.silent.has_value() || !options_.on_all_ranks) {
    return watch.silent;
  }
  if (watch.unanswered > 0 && watch.unanswered * options_.look_every >= options_.silence / 2) {
    return 0;  // Other ranks may have begun to count a little earlier.
  }
  const int64_t looks = watch.looks;
  watch.look_now = true;
  watch.changed.notify_all();
  watch.changed.wait_for(lock, kPatienceWithALook,
                         [&] { return watch.silent.has_value() || watch.ended || watch.looks != looks; });
  return watch.silent;
}

}  // namespace narrowcast
