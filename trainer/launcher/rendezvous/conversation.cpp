#include "trainer/launcher/rendezvous/conversation.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "trainer/launcher/rendezvous/endpoint_watch.h"
#include "trainer/launcher/store/worker_entries.h"

namespace narrowcast::launcher {
namespace {

constexpr std::chrono::milliseconds kPatienceAtEnd{1000};  // how long to wait for the thread to end

// Notes in the decision that the ranks of this node have met the others: the host may be lost before it tells that.
void note_progress(c10d::Store& store, Decision& decision, int64_t ticket) {
  const auto own = std::ranges::find(decision.members, ticket, &Member::ticket);
  if (own != decision.members.end() && own->is_new) {
    own->is_new =
        progress_of(store, decision.run_id, {.node = ticket, .ranks = own->nproc}) != rendezvous::Progress::kMet;
  }
}

}  // namespace

StoreLink::Conversation::Conversation(LinkOptions options) : options_(std::move(options)), hosted_(options_.hosted) {
  if (const auto& before = options_.succession) {
    state_ = {.ticket = before->ticket, .decision = before->decision, .is_succeeding = true};
  }
}

void StoreLink::Conversation::run() {
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

LinkState StoreLink::Conversation::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void StoreLink::Conversation::rank_succeeded(const RankOfNode& rank) {
  post([&] { succeeded_ = rank; });
}

void StoreLink::Conversation::announce_start(const RankOfNode& rank) {
  post([&] {
    state_.starts.erase(rank);
    starting_.insert(rank);
  });
}

void StoreLink::Conversation::watch(const std::set<RankOfNode>& ranks) {
  const std::lock_guard lock(mutex_);
  watched_ = ranks;
  std::erase_if(state_.silent, [&](const auto& entry) { return !ranks.contains(entry.first); });
}

void StoreLink::Conversation::report(const RoundReport& report) {
  post([&] {
    starting_.clear();  // Nothing starts any more.
    report_ = report;
  });
}

void StoreLink::Conversation::leave() {
  post([&] { leaving_ = true; });
}

void StoreLink::Conversation::ask_to_stop() {
  post([this] { stopping_ = true; });
}

// Returns whether the thread ended.
bool StoreLink::Conversation::stop() {
  ask_to_stop();
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatienceAtEnd, [this] { return ended_; });
}

void StoreLink::Conversation::talk() {
  std::optional<StoreMember> joined;
  std::optional<StoreHost> host;
  StorePtr store = join(joined, host);
  if (store == nullptr) {
    return;
  }
  StoreMember& member = *joined;
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
      converse(*store, member, host);
    } catch (const c10::DistNetworkError&) {
      store = host ? nullptr : reconnected(*store, member);
      if (store == nullptr) {
        throw;
      }
    }
    if (host && host->decision().phase == Decision::Phase::kOver) {
      elsewhere.reset();  // A launcher that comes now begins another job.
    } else if (host && succession_ && !elsewhere && host->decision().store != options_.succession->decision.store) {
      const Decision& decision = host->decision();
      elsewhere.emplace(MovedJob{.places = decision.places, .store = decision.store, .seal = options_.seal});
    }
  }
}

// Whether the host knows all members. One that took over has written their places then. The mutex must be locked.
bool StoreLink::Conversation::has_host_decided() const {
  return !options_.succession || state_.decision->store != options_.succession->decision.store;
}

// Announces a rank that has ended, before the report that may end the round, and processes that are about to start.
void StoreLink::Conversation::announce_ranks(c10d::Store& store) {
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

void StoreLink::Conversation::look_for_silent_ranks(c10d::Store& store) {
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
std::string StoreLink::Conversation::current_run() const { return state_.decision ? state_.decision->run_id : ""; }

// Waits until the next requests are due. Returns false after stop().
bool StoreLink::Conversation::pause() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, options_.monitor_interval, [this] {
    return stopping_ || ((succeeded_ || !starting_.empty()) && has_host_decided()) || report_ ||
           (leaving_ && !state_.left);
  });
  return !stopping_;
}

// Sends pending entries and reads the state.
void StoreLink::Conversation::converse(c10d::Store& store, StoreMember& member, const std::optional<StoreHost>& host) {
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
  note_progress(store, decision, member.ticket());
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

}  // namespace narrowcast::launcher
