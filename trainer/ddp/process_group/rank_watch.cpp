#include "trainer/ddp/process_group/rank_watch.h"

#include <c10/util/StringUtil.h>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <narrowcast/network_errors.h>

namespace narrowcast {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kPause{20};               // between two looks for answers
constexpr milliseconds kUnansweringStore{2000};  // more than this, and it is taken for dead

std::string question_key(int64_t rank) { return c10::str("watch/question/", rank); }
std::string answer_key(int64_t rank) { return c10::str("watch/answer/", rank); }
std::string sign_key(int64_t rank) { return c10::str("watch/sign/", rank); }

// The key's value; empty if there is none.
std::string read(const StorePtr& store, const std::string& key) {
  return store->check({key}) ? store->get_to_str(key) : "";
}

// Answers are "NUMBER TEXT", so that each differs from the one before.
std::string text_of(const std::string& answer) { return answer.substr(answer.find(' ') + 1); }

std::map<int64_t, std::string> answers_of(const StorePtr& store, const std::vector<int64_t>& ranks) {
  std::map<int64_t, std::string> answers;
  for (const int64_t rank : ranks) {
    answers[rank] = read(store, answer_key(rank));
  }
  return answers;
}

// Whoever asks at the same time makes a rank answer anew as well: a change of its answer is all that counts.
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

// body(), or nothing if it throws or does not return within `limit`: a call to a store waits for its server however
// long that takes.
template <class Result>
Result within(milliseconds limit, const std::function<Result()>& body, Result otherwise) {
  auto task = std::make_shared<std::packaged_task<Result()>>(body);
  std::future<Result> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  try {
    return result.wait_for(limit) == std::future_status::ready ? result.get() : otherwise;
  } catch (const std::exception&) {
    return otherwise;
  }
}

// Signs of life, and whether those of another rank have stopped. Time is counted in looks: a process that was stopped
// itself does not blame others for it. A rank that has given no sign yet is none that has stopped.
class Signs {
 public:
  explicit Signs(const RankWatch::Options& options) : options_(options) {}

  void give_and_look_for(const StorePtr& store) {
    if (options_.silence.count() == 0) {
      return;
    }
    store->add(sign_key(options_.rank), 1);
    const int64_t signs = store->add(sign_key(options_.watched), 0);
    unchanged_ = signs == last_ ? unchanged_ + 1 : 0;
    last_ = signs;
    if (!is_told_ && signs > 0 && unchanged_ * options_.look_every >= options_.silence) {
      is_told_ = true;
      options_.on_silence();
    }
  }

 private:
  const RankWatch::Options options_;
  int64_t last_ = 0;
  int64_t unchanged_ = 0;  // looks
  bool is_told_ = false;
};

}  // namespace

// What the thread and its owner share; it lives as long as either.
struct RankWatch::Answering {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;

  bool stops_within(milliseconds time) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, time, [&] { return stop; });
  }

  void answer_questions(const StorePtr& store, const Options& options) {
    Signs signs(options);
    for (int64_t number = 0; !stops_within(options.look_every);) {
      signs.give_and_look_for(store);
      if (store->check({question_key(options.rank)})) {
        store->deleteKey(question_key(options.rank));
        store->set(answer_key(options.rank), c10::str(number++, " ", describe_current_step(options.rank)));
      }
    }
  }

  void run(const StorePtr& store, const Options& options) {
    try {
      answer_questions(store, options);
    } catch (const std::exception&) {
      // The store is gone: whoever served it has ended, and nobody can ask any more.
    }
    const std::lock_guard<std::mutex> lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

RankWatch::RankWatch(const StorePtr& store, const Options& options)
    : store_(store), options_(options), answering_(std::make_shared<Answering>()) {
  std::thread([answering = answering_, own = store->clone(), options] { answering->run(own, options); }).detach();
}

RankWatch::~RankWatch() {
  std::unique_lock<std::mutex> lock(answering_->mutex);
  answering_->stop = true;
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

}  // namespace narrowcast
