// How a launcher finds the store and the host, joins the group there, or begins to serve the store.
#include <c10/util/Exception.h>

#include "trainer/base/network/addresses.h"
#include "trainer/base/program/job_secret.h"
#include "trainer/launcher/rendezvous/conversation.h"
#include "trainer/launcher/rendezvous/find_store.h"
#include "trainer/launcher/rendezvous/next_host.h"
#include "trainer/launcher/rendezvous/reconnect.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kToReachAHost{1000};  // that took over: it is reached soon, or was lost, too

}  // namespace

// Another connection to the host that lives, after the last one broke. Null if it does not, or another serves there.
StorePtr StoreLink::Conversation::reconnected(const c10d::Store& broken, StoreMember& member) {
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

// Joins the group at the store, or begins to serve it. Returns null after stop(), or if the job runs elsewhere.
StorePtr StoreLink::Conversation::join(std::optional<StoreMember>& member, std::optional<StoreHost>& host) {
  const Clock::time_point deadline = Clock::now() + options_.rendezvous.read_timeout;
  for (;;) {
    try {
      return try_to_join(member, host);
    } catch (const c10::DistNetworkError&) {
      // An earlier job's store may have answered there, and be gone now.
      const bool has_joined = hosted_ != nullptr || (member && member->has_introduced_itself());
      if (has_joined || succession_ || options_.elsewhere || Clock::now() >= deadline) {
        throw;
      }
    }
    if (!pause()) {
      return nullptr;
    }
  }
}

StorePtr StoreLink::Conversation::try_to_join(std::optional<StoreMember>& member, std::optional<StoreHost>& host) {
  StorePtr store = succession_ ? find_successor() : find_store_there();
  if (store == nullptr) {
    return nullptr;
  }
  JobSeal seal = options_.seal;
  if (hosted_ != nullptr && seal.secret) {
    seal.session = program::random_nonce();
  }
  member.emplace(store, seal);
  if (hosted_ == nullptr) {
    return find_host(*member) ? store : nullptr;
  }
  introduce_host(*member);
  serve(host, store, seal);
  return store;
}

bool StoreLink::Conversation::is_stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

StorePtr StoreLink::Conversation::find_store_there() {
  if (hosted_ != nullptr) {
    return hosted_->store();
  }
  if (is_led_on()) {
    return nullptr;
  }
  const milliseconds to_answer = options_.rendezvous.read_timeout;
  FoundStore found = find_store({.place = place_,
                                 .to_listen = options_.elsewhere ? kToReachAHost : to_answer,
                                 .to_answer = to_answer,
                                 .pauses = [this] { return pause(); },
                                 .ends = [this] { return is_stopping(); },
                                 .own = options_.elsewhere ? nullptr : options_.endpoint});
  hosted_ = std::move(found.hosted);
  return found.store;
}

// Returns the store of the host that takes over.
StorePtr StoreLink::Conversation::find_successor() {
  const bool is_member = has_member(succession_->decision, succession_->ticket);
  const Standby* const standby = is_member ? options_.standby.get() : nullptr;
  NextHost next = find_next_host(*std::move(succession_), standby, options_.rendezvous.heartbeat_timeout);
  succession_ = std::move(next.succession);
  hosted_ = std::move(next.hosted);
  const std::lock_guard lock(mutex_);
  state_.server = next.ticket;
  return next.store;
}

void StoreLink::Conversation::serve(std::optional<StoreHost>& host, const StorePtr& store, const JobSeal& seal) {
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

void StoreLink::Conversation::introduce_host(StoreMember& member) {
  if (succession_) {
    member.join_again_as_host(options_.node, succession_->ticket);
  } else {
    hosted_->forget_launchers();  // They were led to a job that is gone.
    member.join_as_host(options_.node);
  }
  const std::lock_guard lock(mutex_);
  state_.is_host = true;
}

// Before the first round, returns whether the job runs in another store, and tells that.
bool StoreLink::Conversation::has_moved(StoreMember& member) {
  const std::optional<Decision> known = state().decision;
  if (known && (known->phase != Decision::Phase::kForming || known->round > 0)) {
    return false;
  }
  std::string moved = member.moved_to();
  const std::lock_guard lock(mutex_);
  state_.moved = std::move(moved);
  return !state_.moved.empty();
}

// Returns whether the store here, which led this launcher elsewhere, leads to yet another place now, and tells that.
bool StoreLink::Conversation::is_led_on() {
  if (!options_.elsewhere || options_.left_behind == nullptr) {
    return false;
  }
  std::string moved = StoreMember(options_.left_behind->store(), options_.seal).moved_to();
  const std::optional<network::HostAndPort> next = network::parse_host_and_port(moved);
  if (!next || (next->host == place_.host && next->port == place_.port)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  state_.moved = std::move(moved);
  return true;
}

// Waits until a host has accepted the member. Returns false after stop().
bool StoreLink::Conversation::find_host(StoreMember& member) {
  const Clock::time_point deadline = Clock::now() + options_.rendezvous.read_timeout;
  const auto joins = [&] {
    return succession_ ? member.join_again(options_.node, *succession_)
                       : member.has_host() && member.join(options_.node);
  };
  while (!has_moved(member) && !joins()) {
    TORCH_CHECK_WITH(DistNetworkError, Clock::now() < deadline,
                     member.is_over()       ? "the job there is over, and its launcher does not end"
                     : options_.seal.secret ? "the store there does not belong to narrowcast-run with this job's secret"
                                            : "the store there does not belong to narrowcast-run");
    if (!pause()) {
      return false;
    }
  }
  return state().moved.empty();
}

}  // namespace narrowcast::launcher
