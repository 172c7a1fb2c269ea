#include "trainer/launcher/rendezvous/store_link.h"

#include <c10/util/Exception.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "trainer/base/network/addresses.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/rendezvous/endpoint_watch.h"
#include "trainer/launcher/rendezvous/next_host.h"
#include "trainer/launcher/rendezvous/reconnect.h"
#include "trainer/launcher/store/store_host.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAttempt{1000};        // timeout of one connection
constexpr milliseconds kPatienceAtEnd{1000};  // how long to wait for the thread to end

}  // namespace

// Both threads share it, so that it lives until both have ended.
class StoreLink::Conversation {
 public:
  explicit Conversation(LinkOptions options) : options_(std::move(options)), hosted_(options_.hosted) {
    if (const auto& before = options_.succession) {
      state_ = {.ticket = before->ticket, .decision = before->decision, .is_succeeding = true};
    }
  }

  void run() {
    std::string why;
    try {
      talk();
    } catch (const CorruptInputError& error) {
      why = first_line(error_message(error));
    } catch (const std::exception& error) {
      // c10d's message about a lost connection names its internal functions.
      why = is_connected_ ? "the launcher that served it has ended or was killed" : first_line(error_message(error));
    }
    const std::lock_guard lock(mutex_);
    state_.broken = why;
    ended_ = true;
    changed_.notify_all();
  }

  LinkState state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

  void rank_succeeded(const RankOfNode& rank) {
    post([&] { succeeded_ = rank; });
  }

  void announce_start(const RankOfNode& rank) {
    post([&] {
      state_.starts.erase(rank);
      starting_.insert(rank);
    });
  }

  void watch(const std::set<RankOfNode>& ranks) {
    const std::lock_guard lock(mutex_);
    watched_ = ranks;
    std::erase_if(state_.silent, [&](const auto& entry) { return !ranks.contains(entry.first); });
  }

  void report(const RoundReport& report) {
    post([&] {
      starting_.clear();  // Nothing starts any more.
      report_ = report;
    });
  }

  void leave() {
    post([&] { leaving_ = true; });
  }

  void ask_to_stop() {
    post([this] { stopping_ = true; });
  }

  // Returns whether the thread ended.
  bool stop() {
    ask_to_stop();
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatienceAtEnd, [this] { return ended_; });
  }

 private:
  // Notes a wish of the main thread, and ends a pause.
  template <class Change>
  void post(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  void talk() {
    StorePtr store = succession_ ? find_successor() : find_store();
    if (store == nullptr) {
      return;
    }
    JobSeal seal = options_.seal;
    if (hosted_ != nullptr && seal.secret) {
      seal.session = program::random_nonce();
    }
    StoreMember member(store, seal);
    std::optional<StoreHost> host;
    if (hosted_ != nullptr) {
      introduce_host(member);
      serve(host, store, seal);
    } else if (!find_host(member)) {
      return;
    }
    std::optional<EndpointWatch> elsewhere;
    PatientClock clock;
    while (pause()) {
      try {
        if (has_moved(member)) {
          return;
        }
        if (host) {
          host->step(clock.now());
        }
        announce_ranks(*store);
        look_for_silent_ranks(*store);
        converse(member, host);
      } catch (const c10::DistNetworkError&) {
        store = host ? nullptr : reconnected(*store, member);
        if (store == nullptr) {
          throw;
        }
      }
      if (host && succession_ && !elsewhere && host->decision().store != options_.succession->decision.store) {
        const Decision& decision = host->decision();
        elsewhere.emplace(MovedJob{.places = decision.places, .store = decision.store, .seal = options_.seal});
      }
    }
  }

  // Another connection to the host that lives, after the last one broke. Null if it does not, or another serves there.
  StorePtr reconnected(const c10d::Store& broken, StoreMember& member) {
    const auto pauses = [this](milliseconds time) {
      std::unique_lock lock(mutex_);
      return !changed_.wait_for(lock, time, [this] { return stopping_; });
    };
    const auto is_same = [&, last = state()](const StorePtr& store) {
      member.reconnect(store);
      return member.is_served_by(*last.decision, last.host);
    };
    return is_connected_ ? reconnect(broken, options_.rendezvous.to_reconnect(), pauses, is_same) : nullptr;
  }

  // Waits until the store's port accepts connections. Returns null after stop().
  StorePtr find_store() {
    if (hosted_ != nullptr) {
      return hosted_->store();
    }
    // A launcher that took over is reached soon, or was lost, too.
    const Clock::time_point deadline =
        Clock::now() + (options_.elsewhere ? kAttempt : options_.rendezvous.read_timeout);
    for (;;) {
      milliseconds left = kAttempt;
      const std::string reason = try_to_reach(place_.host, place_.port, left);
      if (reason.empty()) {
        return network::reach_tcp_store(place_.host, place_.port, options_.rendezvous.read_timeout);
      }
      TORCH_CHECK_WITH(DistNetworkError, Clock::now() < deadline, "cannot be reached: ", reason);
      if (!pause()) {
        return nullptr;
      }
    }
  }

  // Returns the store of the host that takes over.
  StorePtr find_successor() {
    NextHost next = find_next_host(*std::move(succession_), *options_.standby, options_.rendezvous.heartbeat_timeout);
    succession_ = std::move(next.succession);
    hosted_ = std::move(next.hosted);
    const std::lock_guard lock(mutex_);
    state_.server = next.ticket;
    return next.store;
  }

  void serve(std::optional<StoreHost>& host, const StorePtr& store, const JobSeal& seal) {
    const GroupTimeouts timeouts{.join = options_.rendezvous.join_timeout,
                                 .last_call = options_.rendezvous.last_call_timeout,
                                 .silence = options_.rendezvous.silence()};
    Coordinator coordinator = succession_ ? Coordinator(options_.node, timeouts, *succession_)
                                          : Coordinator(options_.node, timeouts, options_.run_id);
    coordinator.add_place(network::host_and_port(options_.host, options_.port));
    const auto before_round = [this] { hosted_->forget_workers(); };
    host.emplace(store, std::move(coordinator), before_round, seal, options_.monitor_interval);
    if (succession_) {
      host->take_over(*succession_, options_.rendezvous.to_gather(options_.monitor_interval, succession_->pause));
    }
  }

  void introduce_host(StoreMember& member) {
    if (succession_) {
      member.join_again_as_host(options_.node, succession_->ticket);
    } else {
      member.join_as_host(options_.node);
    }
    const std::lock_guard lock(mutex_);
    state_.is_host = true;
  }

  // Sends what is pending, and keeps it if that fails.
  template <class Value, class Send>
  void send(std::optional<Value>& pending, const Send& send_value) {
    std::unique_lock lock(mutex_);
    std::optional<Value> value = std::exchange(pending, std::nullopt);
    lock.unlock();
    try {
      if (value) {
        send_value(*value);
      }
    } catch (...) {
      lock.lock();
      pending = pending ? std::move(pending) : std::move(value);
      throw;
    }
  }

  // Before the first round, returns whether the job runs in another store, and tells that.
  bool has_moved(StoreMember& member) {
    const std::optional<Decision> known = state().decision;
    if (known && (known->phase != Decision::Phase::kForming || known->round > 0)) {
      return false;
    }
    std::string moved = member.moved_to();
    const std::lock_guard lock(mutex_);
    state_.moved = std::move(moved);
    return !state_.moved.empty();
  }

  // Whether the host knows all members. One that took over has written their places then. The mutex must be locked.
  bool has_host_decided() const {
    return !options_.succession || state_.decision->store != options_.succession->decision.store;
  }

  // Announces a rank that has ended, before the report that may end the round, and processes that are about to start.
  void announce_ranks(c10d::Store& store) {
    std::unique_lock lock(mutex_);
    if (!has_host_decided()) return;
    const std::set<RankOfNode> ranks = starting_;
    const std::string run_id = current_run();
    const auto is_own = [this](const Member& member) { return member.ticket == state_.ticket && member.is_new; };
    const bool is_new = state_.decision && std::ranges::any_of(state_.decision->members, is_own);
    lock.unlock();
    const auto announce = is_new ? announce_ended_newcomer : announce_ended_rank;
    send(succeeded_, [&](const RankOfNode& rank) { announce(store, run_id, rank); });
    for (const RankOfNode& rank : ranks) {
      const int64_t starts = launcher::announce_start(store, run_id, rank);
      lock.lock();
      starting_.erase(rank);
      state_.starts[rank] = starts;
      lock.unlock();
    }
  }

  void look_for_silent_ranks(c10d::Store& store) {
    std::unique_lock lock(mutex_);
    const std::set<RankOfNode> ranks = watched_;
    const std::string run_id = current_run();
    lock.unlock();
    SilentRanks silent = read_silent_ranks(store, run_id, ranks);
    lock.lock();
    if (ranks == watched_) {  // Otherwise the answer may be about an earlier round.
      state_.silent = std::move(silent);
    }
  }

  // The mutex must be locked.
  std::string current_run() const { return state_.decision ? state_.decision->run_id : ""; }

  // Waits until a host has accepted the member. Returns false after stop().
  bool find_host(StoreMember& member) {
    const Clock::time_point deadline = Clock::now() + options_.rendezvous.read_timeout;
    const auto joins = [&] {
      return succession_ ? member.join_again(options_.node, *succession_)
                         : member.has_host() && member.join(options_.node);
    };
    while (!has_moved(member) && !joins()) {
      TORCH_CHECK_WITH(DistNetworkError, Clock::now() < deadline, "the store there does not belong to narrowcast-run",
                       options_.seal.secret ? " with this job's secret" : "");
      if (!pause()) {
        return false;
      }
    }
    return state().moved.empty();
  }

  // Waits until the next requests are due. Returns false after stop().
  bool pause() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, options_.monitor_interval, [this] {
      return stopping_ || ((succeeded_ || !starting_.empty()) && has_host_decided()) || report_ ||
             (leaving_ && !state_.left);
    });
    return !stopping_;
  }

  // Sends pending entries and reads the state.
  void converse(StoreMember& member, const std::optional<StoreHost>& host) {
    if (Clock::now() >= next_beat_) {
      member.beat();
      next_beat_ = Clock::now() + options_.rendezvous.keep_alive_interval;
    }
    send(report_, [&](const RoundReport& report) { member.report(report); });
    std::unique_lock lock(mutex_);
    const bool leaving = leaving_;
    lock.unlock();
    if (leaving) {
      member.leave();
    }
    Decision decision = host ? host->decision() : member.decision();
    const HostSign sign = host ? HostSign() : member.host_sign();
    // Until a host that took over has decided, it tells the last decision that it knows, which may be an older one.
    const bool is_news = !options_.succession || has_decided(decision, *options_.succession);
    if (is_news && member.learn(decision)) {
      next_beat_ = Clock::now();  // The host waits for it.
    }
    lock.lock();
    is_connected_ = true;
    state_.is_succeeding = false;
    state_.ticket = member.ticket();
    if (is_news) {
      state_.decision = std::move(decision);
    }
    state_.left = leaving;
    state_.others_left = !host || host->everyone_left();
    state_.rejected = member.rejected() + (host ? host->rejected() : 0);
    const bool has_answered = host || sign.steps != state_.host.steps;
    state_.answers += has_answered ? 1 : 0;
    state_.host_is_spoiled = !has_answered && (state_.host_is_spoiled || sign.spoiled > state_.host.spoiled);
    state_.host = sign;
  }

  const LinkOptions options_;
  std::optional<Succession> succession_ = options_.succession;
  const Endpoint place_ = options_.elsewhere.value_or(Endpoint{options_.host, options_.port});
  std::shared_ptr<HostedStore> hosted_;  // the store, if served here
  Clock::time_point next_beat_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LinkState state_;
  std::optional<RankOfNode> succeeded_;  // the last rank that succeeded, until it is announced
  std::set<RankOfNode> starting_;        // ranks whose starts are to be announced
  std::set<RankOfNode> watched_;         // ranks that may be found silent
  std::optional<RoundReport> report_;
  bool is_connected_ = false;  // the host has answered
  bool leaving_ = false;
  bool stopping_ = false;
  bool ended_ = false;
};

StoreLink::StoreLink(LinkOptions options)
    : conversation_(std::make_shared<Conversation>(std::move(options))),
      thread_([conversation = conversation_] { conversation->run(); }) {}

StoreLink::~StoreLink() {
  if (!thread_.joinable()) {
    return;
  }
  if (conversation_->stop()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

LinkState StoreLink::state() const { return conversation_->state(); }

void StoreLink::rank_succeeded(const RankOfNode& rank) { conversation_->rank_succeeded(rank); }

void StoreLink::announce_start(const RankOfNode& rank) { conversation_->announce_start(rank); }

void StoreLink::watch(const std::set<RankOfNode>& ranks) { conversation_->watch(ranks); }

void StoreLink::report(const RoundReport& report) { conversation_->report(report); }

void StoreLink::leave() { conversation_->leave(); }

void StoreLink::abandon() {
  conversation_->ask_to_stop();
  thread_.detach();
}

}  // namespace narrowcast::launcher
